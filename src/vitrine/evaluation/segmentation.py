"""How well pixels are classified: counted over all pixels of a set, never averaged per picture.

Pixels with the value 255 count nowhere. A class that is neither in a mask nor predicted has no IoU, and is left out
of the mean. Shapes: K classes; H x W pixels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import IGNORED, Map
from vitrine.errors import DataError

Counts = NDArray[np.int64]


def confusion_of(truth: Map, predicted: Map, *, num_classes: int) -> Counts:
    """Count the pixels of each class (rows) that are predicted as each class (columns): (K, K)."""
    if truth.shape != predicted.shape:
        raise DataError(
            f"a mask of {truth.shape[0]} x {truth.shape[1]} pixels cannot be compared with one of "
            f"{predicted.shape[0]} x {predicted.shape[1]}; they must have the same size"
        )
    known = truth != IGNORED
    rows, columns = truth[known].astype(np.int64), predicted[known].astype(np.int64)
    # A prediction of 255, or of a class that the truth does not know, is wrong for every class: one more column.
    columns = np.minimum(columns, num_classes)
    counts = np.bincount(rows * (num_classes + 1) + columns, minlength=num_classes * (num_classes + 1))
    return counts.reshape(num_classes, num_classes + 1)


@dataclass(frozen=True, kw_only=True)
class PixelScore:
    """Figures of a segmentation, from its confusion matrix (K, K + 1), whose last column is for no class."""

    classes: tuple[str, ...]
    confusion: Counts
    num_images: int

    @property
    def num_labelled(self) -> Counts:
        """Pixels of each class (K,)."""
        labelled: Counts = self.confusion.sum(axis=1)
        return labelled

    @property
    def iou(self) -> NDArray[np.float64]:
        """Intersection over union of each class (K,); NaN for a class that is neither labelled nor predicted."""
        K = len(self.classes)
        correct = self.confusion[:, :K].diagonal()
        union = self.num_labelled + self.confusion[:, :K].sum(axis=0) - correct
        with np.errstate(invalid="ignore"):
            return correct / np.where(union > 0, union, np.nan)

    @property
    def class_accuracy(self) -> NDArray[np.float64]:
        """Share of the pixels of each class that are predicted as it (K,); NaN for a class without pixels."""
        correct = self.confusion[:, : len(self.classes)].diagonal()
        with np.errstate(invalid="ignore"):
            return correct / np.where(self.num_labelled > 0, self.num_labelled, np.nan)

    @property
    def mean_iou(self) -> float:
        """Mean IoU of the classes that occur."""
        return _mean(self.iou)

    @property
    def mean_accuracy(self) -> float:
        """Mean accuracy of the classes that are labelled."""
        return _mean(self.class_accuracy)

    @property
    def pixel_accuracy(self) -> float:
        """Share of the labelled pixels that are predicted correctly."""
        total = int(self.confusion.sum())
        return float(self.confusion[:, : len(self.classes)].trace() / total) if total else float("nan")

    def headline(self) -> dict[str, float]:
        """Return the three figures of a set."""
        return {
            "mean_iou": self.mean_iou,
            "pixel_accuracy": self.pixel_accuracy,
            "mean_accuracy": self.mean_accuracy,
        }

    def worst(self, count: int) -> tuple[tuple[str, float], ...]:
        """Return the classes with the lowest IoU, lowest first."""
        iou = self.iou
        ranked = sorted(np.flatnonzero(~np.isnan(iou)).tolist(), key=lambda number: (iou[number], number))
        return tuple((self.classes[number], float(iou[number])) for number in ranked[:count])

    def confused(self, count: int) -> tuple[tuple[str, str, int], ...]:
        """Return the pairs of classes that are confused most: labelled, predicted, and how many pixels."""
        K = len(self.classes)
        wrong = self.confusion[:, :K].copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:count]
        rows, columns = np.unravel_index(order, wrong.shape)
        pairs = zip(rows.tolist(), columns.tolist(), strict=True)
        return tuple((self.classes[i], self.classes[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j])


def score_pixels(
    pairs: Iterable[tuple[Map, Map]], *, classes: Sequence[str]
) -> tuple[PixelScore, list[Counts]]:
    """Score pairs of true and predicted maps; return the score of the set, and the confusion of each picture."""
    each = [confusion_of(truth, predicted, num_classes=len(classes)) for truth, predicted in pairs]
    total = total_of(each, num_classes=len(classes))
    return PixelScore(classes=tuple(classes), confusion=total, num_images=len(each)), each


def total_of(each: Iterable[Counts], *, num_classes: int) -> Counts:
    """Add up the confusion of pictures; zeros without any."""
    return sum(each, np.zeros((num_classes, num_classes + 1), dtype=np.int64))


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
