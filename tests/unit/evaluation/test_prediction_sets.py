"""Prediction sets keep their promise."""

import pytest
import torch

from vitrine.errors import ConfigError
from vitrine.evaluation.prediction_sets import ENOUGH, held_out_scores, prediction_sets, quantile


def answers(count: int, *, seed: int, hard: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw probabilities of four classes and labels; the model is overconfident, and bad at class `hard`."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    signal = torch.full((count,), 2.0)
    if hard is not None:
        signal[labels == hard] = 0.3
    logits = torch.randn(count, 4, generator=generator)
    logits[torch.arange(count), labels] += signal
    return (3 * logits).softmax(1), labels


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_contain_the_true_class_as_often_as_promised(coverage):
    known = held_out_scores(*answers(2000, seed=0))
    probabilities, labels = answers(4000, seed=1)
    sets = prediction_sets(probabilities, known.thresholds(coverage, num_classes=4))
    covered = sets[torch.arange(4000), labels].mean()
    assert covered == pytest.approx(coverage, abs=0.02)
    assert 1 <= sets.sum(1).mean() < 4


def test_a_class_with_enough_held_out_images_keeps_the_promise_by_itself():
    probabilities, labels = answers(4 * 5 * ENOUGH, seed=0, hard=2)
    known = held_out_scores(probabilities, labels)
    fresh, true = answers(8000, seed=1, hard=2)
    rows = torch.nonzero(true == 2)[:, 0]
    own = prediction_sets(fresh, known.thresholds(0.9, num_classes=4))
    pooled = prediction_sets(fresh, torch.full((4,), quantile(known.probabilities, 0.9)))
    assert own[rows, 2].mean() == pytest.approx(0.9, abs=0.03)
    assert pooled[rows, 2].mean() < 0.85  # one threshold for all classes would break it


def test_the_most_likely_class_is_always_in_the_set():
    sets = prediction_sets(torch.tensor([[0.4, 0.35, 0.25]]), torch.full((3,), 0.9))
    assert sets.tolist() == [[True, False, False]]


def test_more_coverage_than_the_held_out_images_can_promise_is_refused():
    known = held_out_scores(*answers(10, seed=0))
    assert known.thresholds(0.9, num_classes=4).shape == (4,)
    for coverage in (0.95, 0.0, 1.0):
        with pytest.raises(ConfigError) as caught:
            known.thresholds(coverage, num_classes=4)
        assert caught.value.option == "coverage"
