"""Mean IoU: over the whole set, without ignored pixels, and only of classes that occur."""

import math

import numpy as np
import pytest

from vitrine.errors import DataError
from vitrine.evaluation.segmentation import confusion_of, score_pixels

CLASSES = ("ground", "cat", "dog")


def written_out(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[list[float], float]:
    """IoU of each class and pixel accuracy, pixel by pixel."""
    both, either, right, total = [0] * 3, [0] * 3, 0, 0
    for truth, predicted in pairs:
        for a, b in zip(truth.ravel().tolist(), predicted.ravel().tolist(), strict=True):
            if a == 255:
                continue
            total += 1
            right += a == b
            for number in range(3):
                both[number] += a == number == b
                either[number] += number in (a, b)
    return [b / e if e else math.nan for b, e in zip(both, either, strict=True)], right / total


def test_figures_equal_those_that_are_written_out() -> None:
    rng = np.random.default_rng(0)
    pairs = [
        (
            rng.choice([0, 1, 2, 255], (7, 9)).astype(np.uint8),
            rng.choice([0, 1, 2, 7], (7, 9)).astype(np.uint8),
        )
        for _ in range(5)
    ]
    score, each = score_pixels(pairs, classes=CLASSES)
    iou, accuracy = written_out(pairs)
    np.testing.assert_allclose(score.iou, iou)
    assert score.pixel_accuracy == pytest.approx(accuracy)
    assert score.mean_iou == pytest.approx(float(np.mean(iou)))
    assert sum(counts.sum() for counts in each) == score.confusion.sum()


def test_a_class_that_never_occurs_is_left_out_and_one_that_is_only_predicted_counts_as_zero() -> None:
    truth = np.array([[0, 0, 1, 1]], dtype=np.uint8)
    score, _ = score_pixels([(truth, truth)], classes=CLASSES)
    assert score.mean_iou == 1
    assert math.isnan(score.iou[2])
    score, _ = score_pixels([(truth, np.array([[0, 2, 1, 1]], dtype=np.uint8))], classes=CLASSES)
    assert score.mean_iou == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert score.confused(5) == (("ground", "dog", 1),)
    assert score.worst(1) == (("dog", 0.0),)


def test_pixels_are_counted_over_the_set_and_not_averaged_per_picture() -> None:
    large, small = np.zeros((10, 10), dtype=np.uint8), np.ones((1, 1), dtype=np.uint8)
    score, _ = score_pixels([(large, large), (small, 0 * small)], classes=CLASSES)
    assert score.iou[0] == pytest.approx(100 / 101)
    assert score.iou[1] == 0


def test_masks_of_different_sizes_are_refused() -> None:
    with pytest.raises(DataError, match=r"2 x 2.*2 x 3"):
        confusion_of(np.zeros((2, 2), dtype=np.uint8), np.zeros((2, 3), dtype=np.uint8), num_classes=3)
