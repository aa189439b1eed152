"""Which mistakes a detector makes in a picture: missed, confused, twice, where there is nothing."""

import numpy as np
import pytest

from vitrine.data.decoding.annotation import Annotation
from vitrine.evaluation.mistakes import Mistake, mistakes_in, score_masks
from vitrine.evaluation.objects import BoxPrediction


def box(left: float) -> list[float]:
    return [left, 0, left + 10, 10]


def mistakes(
    truths: list[tuple[float, int]], answers: list[tuple[float, int, float]], *, ignored: tuple[int, ...] = ()
) -> list[Mistake]:
    """Compare objects (left, class) with boxes (left, class, score), best first."""
    return mistakes_in(
        Annotation(
            size=(20, 200),
            boxes=np.array([box(left) for left, _ in truths], dtype=np.float32).reshape(-1, 4),
            labels=np.array([label for _, label in truths], dtype=np.int64),
            is_ignored=np.isin(np.arange(len(truths)), ignored),
        ),
        BoxPrediction(
            index=0,
            boxes=np.array([box(left) for left, _, _ in answers], dtype=np.float32).reshape(-1, 4),
            labels=np.array([label for _, label, _ in answers], dtype=np.int64),
            scores=np.array([score for _, _, score in answers], dtype=np.float32),
        ),
    )


@pytest.mark.parametrize(
    ("truths", "answers", "wanted"),
    [
        ([(0, 1)], [(1, 1, 0.9)], []),
        ([(0, 1)], [(1, 1, 0.2)], [(1, None)]),
        ([(0, 1)], [(6, 1, 0.9)], [(None, 1), (1, None)]),
        ([(0, 1)], [(1, 2, 0.9)], [(1, 2)]),
        ([(0, 1)], [(0, 1, 0.9), (1, 1, 0.8)], [(None, 1)]),
        ([(0, 1)], [(0, 2, 0.9), (1, 1, 0.8)], [(None, 2)]),
        ([(0, 1), (100, 1)], [(0, 1, 0.9)], [(1, None)]),
        ([], [], []),
        ([], [(0, 0, 0.5)], [(None, 0)]),
    ],
)
def test_each_kind_of_mistake_is_named(
    truths: list[tuple[float, int]], answers: list[tuple[float, int, float]], wanted: list[Mistake]
) -> None:
    assert mistakes(truths, answers) == wanted


def test_an_object_that_need_not_be_found_is_no_mistake_whatever_it_is_called() -> None:
    assert mistakes([(0, 1)], [], ignored=(0,)) == []
    assert mistakes([(0, 1)], [(0, 1, 0.9), (1, 1, 0.8), (0, 2, 0.7)], ignored=(0,)) == []


def test_the_worst_masks_are_those_with_the_fewest_correct_pixels() -> None:
    truth = np.ones((20, 20), dtype=np.uint8)
    halves = truth.copy()
    halves[:10] = 0
    tiny = np.zeros((3, 3), dtype=np.uint8)
    pairs = [(0, truth, truth), (1, truth, 1 - truth), (2, tiny, tiny + 1), (3, truth, halves)]
    score, worst = score_masks(pairs, classes=("a", "b"), count=4)
    assert [one.index for one in worst] == [1, 3, 0]
    assert [one.accuracy for one in worst] == [0, 0.5, 1]
    assert score.num_images == 4
