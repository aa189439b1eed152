"""Accuracy, confusion and per-class figures of single-label predictions.

Shapes: N images, K classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import DataError
from vitrine.spelling import counted

Scores = NDArray[Any]  # (N, K)
Classes = NDArray[Any]  # (N,)
Flags = NDArray[np.bool_]  # (N,)
_ROWS = 8192


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """How one class fares; None where it is not defined: never predicted, or without images."""

    name: str
    num_images: int
    num_predicted: int
    precision: float | None
    recall: float | None
    f1: float | None


def top_k_correct(scores: Scores, labels: Classes, *, k: int) -> Flags:
    """Say for each image whether its label is among the k highest scores; of equal ones the first counts."""
    check_labels(labels, num_classes=scores.shape[1])
    correct = np.empty(len(scores), dtype=bool)
    place = np.arange(scores.shape[1])
    for start in range(0, len(scores), _ROWS):
        rows, targets = scores[start : start + _ROWS], labels[start : start + _ROWS, None]
        own = np.take_along_axis(rows, targets.astype(np.int64), axis=1)
        # A model that scores all classes alike must not count as right: ties go to the lower number.
        ahead = (rows > own) | ((rows == own) & (place[None] < targets))
        correct[start : start + _ROWS] = ahead.sum(axis=1) < k
    return correct


def confusion_matrix(predicted: Classes, labels: Classes, *, num_classes: int) -> NDArray[np.int64]:
    """Count images by label (rows) and prediction (columns): (K, K)."""
    check_labels(labels, num_classes=num_classes)
    pairs = labels.astype(np.int64) * num_classes + predicted.astype(np.int64)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def class_figures(confusion: NDArray[np.int64], classes: tuple[str, ...]) -> tuple[ClassFigures, ...]:
    """Work out precision, recall and F1 of each class."""
    hits, images, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    return tuple(
        ClassFigures(
            name=name,
            num_images=int(images[k]),
            num_predicted=int(predicted[k]),
            precision=_ratio(hits[k], predicted[k]),
            recall=_ratio(hits[k], images[k]),
            f1=_ratio(2 * hits[k], images[k] + predicted[k]) if images[k] else None,
        )
        for k, name in enumerate(classes)
    )


def macro_average(figures: tuple[ClassFigures, ...], *, name: str) -> float:
    """Average a figure over the classes that have images; one never predicted has a precision of 0."""
    values = [getattr(figure, name) or 0.0 for figure in figures if figure.num_images]
    return float(np.mean(values))


def check_labels(labels: Classes, *, num_classes: int) -> None:
    """Refuse labels that the model has no class for."""
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        raise DataError(
            f"outside the model's {num_classes} classes: {counted(len(wrong), 'label')}, the first is {wrong[0]}; "
            f"labels go from 0 to {num_classes - 1}"
        )


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
