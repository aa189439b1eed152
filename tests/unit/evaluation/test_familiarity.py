"""None of these: distances, thresholds and their file."""

import pytest
import torch

from vitrine.checkpoints.tensors import TRUST_FILE as FILE
from vitrine.errors import CheckpointError
from vitrine.evaluation.familiarity import (
    Familiarity,
    area_under_curve,
    false_alarms,
    fit_distance,
    fit_familiarity,
)
from vitrine.evaluation.prediction_sets import held_out_scores
from vitrine.evaluation.trust import Trust, read_trust, write_trust


def classes(count: int, *, seed: int, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw `count` rows of three classes with unlike spreads."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = 4 * torch.eye(3, width)
    return centres[labels] + torch.randn(count, width, generator=generator) * torch.linspace(
        0.2, 2, width
    ), labels


def test_the_distance_equals_the_written_out_formula():
    rows, labels = classes(300, seed=0)
    fitted = fit_distance(rows, labels)
    x = rows.double()
    means = torch.stack([x[labels == k].mean(0) for k in range(3)])
    sphere = torch.eye(6, dtype=torch.float64)

    def covariance(centred):
        plain = centred.T @ centred / len(centred)
        return 0.999 * plain + 0.001 * plain.diagonal().mean() * sphere

    within = torch.linalg.inv(covariance(x - means[labels]))
    whole = torch.linalg.inv(covariance(x - x.mean(0)))
    for row, measured in zip(x[:20], fitted(rows[:20]), strict=True):
        own = min((row - mean) @ within @ (row - mean) for mean in means)
        expected = own - (row - x.mean(0)) @ whole @ (row - x.mean(0))
        assert measured.item() == pytest.approx(expected.item(), abs=1e-8)


def test_familiar_pictures_pass_19_times_in_20_and_others_do_not():
    rows, labels = classes(600, seed=0)
    held_out, _ = classes(600, seed=1)
    known = fit_familiarity(rows, labels, held_out=held_out)
    fresh, _ = classes(2000, seed=2)
    far = fresh + torch.tensor([3.0, 3.0, 3.0, 0, 0, 0])  # between and beyond the classes
    passed = (known.distance(fresh) <= known.threshold).double().mean().item()
    assert passed == pytest.approx(0.95, abs=0.03)
    assert (known.distance(far) > known.threshold).double().mean() > 0.5
    assert area_under_curve(known.distance(fresh), known.distance(far)) > 0.9
    shares = known.shares(known.distance(fresh))
    assert shares.mean().item() == pytest.approx(0.5, abs=0.05)  # as unlike as held-out images are


def test_few_held_out_images_mark_more_pictures_of_the_classes_and_say_how_many():
    rows, labels = classes(600, seed=0)
    distance = fit_distance(rows, labels)
    fresh = distance(classes(500, seed=2)[0])
    marked = []
    for seed in range(100):
        few = Familiarity(distance=distance, held_out=distance(classes(9, seed=100 + seed)[0]).sort().values)
        assert few.false_alarms == pytest.approx(0.1)
        marked.append((fresh > few.threshold).double().mean())
    # The share of one draw spreads by 0.09: the mean of 100 by 0.009.
    assert torch.stack(marked).mean().item() == pytest.approx(0.1, abs=0.03)
    assert false_alarms(19) == false_alarms(2000) == pytest.approx(0.05)


def test_without_held_out_images_the_threshold_comes_from_images_that_the_distance_was_not_fitted_on():
    rows, labels = classes(60, seed=0, width=30)
    known = fit_familiarity(rows, labels)
    fresh, _ = classes(1000, seed=3, width=30)
    assert (known.distance(fresh) <= known.threshold).double().mean() > 0.85
    assert (fit_distance(rows, labels)(rows).quantile(0.95)) < known.threshold


def test_ties_count_half_in_the_area_under_the_curve():
    assert area_under_curve(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])) == 0.875


def test_trust_is_read_as_it_was_written_and_a_damaged_file_is_refused(tmp_path):
    rows, labels = classes(60, seed=0)
    known = fit_familiarity(rows, labels)
    scores = held_out_scores(torch.rand(60, 3).softmax(1), labels)
    write_trust(tmp_path, Trust(familiarity=known, held_out=scores))
    again = read_trust(tmp_path)
    assert again.familiarity is not None and again.held_out is not None
    torch.testing.assert_close(again.familiarity.distance(rows), known.distance(rows), rtol=1e-3, atol=1e-3)
    assert again.held_out.thresholds(0.9, num_classes=3).tolist() == pytest.approx(
        scores.thresholds(0.9, num_classes=3).tolist()
    )
    assert read_trust(tmp_path / "elsewhere") == Trust()
    (tmp_path / FILE).write_bytes(b"{}")
    with pytest.raises(CheckpointError):
        read_trust(tmp_path)
