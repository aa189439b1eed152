"""Accuracy, confusion, per-class figures and average precision, and the 95 % intervals of any of them.

Shapes: N images, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.source import NO_LABEL
from vitrine.errors import DataError
from vitrine.spelling import counted

Scores = NDArray[Any]  # (N, K)
Classes = NDArray[Any]  # (N,)
Flags = NDArray[np.bool_]  # (N,)
_ROWS = 8192
RESAMPLES = 1000
LEVEL = 0.95
# Mean confidence and accuracy that differ by at most this are called equal.
FAIR_CLAIM = 0.02


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})"


def compared(claimed: float, right: Interval) -> str:
    """Compare a mean confidence with an accuracy in words; a difference within its 95 % interval may be chance."""
    if abs(claimed - right.value) <= FAIR_CLAIM:
        return "about as often right as it claims"
    if right.low <= claimed <= right.high:
        return "as often right as it claims, within the 95 % interval"
    return f"{'more' if right.value > claimed else 'less'} often right than it claims"


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """Figures of one class; None if undefined: never predicted, or without images."""

    name: str
    num_images: int
    num_predicted: int
    precision: float | None
    recall: float | None
    f1: float | None


def top_k_correct(scores: Scores, labels: Classes, *, k: int) -> Flags:
    """Return for each image whether its label is among the k highest scores; among equals the first counts."""
    check_labels(labels, num_classes=scores.shape[1])
    correct = np.empty(len(scores), dtype=bool)
    place = np.arange(scores.shape[1])
    for start in range(0, len(scores), _ROWS):
        rows, targets = scores[start : start + _ROWS], labels[start : start + _ROWS, None]
        own = np.take_along_axis(rows, targets.astype(np.int64), axis=1)
        # A model that scores all classes equally must not count as correct: ties go to the lower class number.
        ahead = (rows > own) | ((rows == own) & (place[None] < targets))
        correct[start : start + _ROWS] = ahead.sum(axis=1) < k
    return correct


def confusion_matrix(predicted: Classes, labels: Classes, *, num_classes: int) -> NDArray[np.int64]:
    """Count images by label (rows) and prediction (columns): (K, K)."""
    check_labels(labels, num_classes=num_classes)
    pairs = labels.astype(np.int64) * num_classes + predicted.astype(np.int64)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def class_figures(confusion: NDArray[np.int64], classes: tuple[str, ...]) -> tuple[ClassFigures, ...]:
    """Compute precision, recall and F1 of each class."""
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
    """Average a figure over the classes with images; a class that is never predicted has a precision of 0."""
    values = [getattr(figure, name) or 0.0 for figure in figures if figure.num_images]
    return float(np.mean(values))


def average_precisions(scores: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the area under each class's precision-recall steps (K,); NaN for a class without images."""
    order = np.argsort(-scores, axis=0, kind="stable")
    areas = np.full(scores.shape[1], np.nan)
    for k in np.flatnonzero(present.any(axis=0)):
        ranked, values = present[order[:, k], k], scores[order[:, k], k]
        # Images with equal scores enter together: only the last of them is a threshold.
        last = np.flatnonzero(np.append(np.diff(values) != 0, True))
        hits = np.cumsum(ranked)[last]
        precision, recall = hits / (last + 1), hits / hits[-1]
        areas[k] = float(np.sum(np.diff(recall, prepend=0) * precision))
    return areas


def mean_average_precision(scores: NDArray[Any], present: NDArray[np.bool_]) -> float:
    """Return the mean over the classes with images."""
    values = average_precisions(scores, present)
    if np.isnan(values).all():
        raise DataError("no image has a label, so average precision is undefined")
    return float(np.nanmean(values))


def presence(labels: NDArray[Any], *, num_classes: int) -> NDArray[np.bool_]:
    """Turn label lists (N, M), padded with -1, into flags (N, K)."""
    if len(labels) and labels.max() >= num_classes:
        raise DataError(
            f"label {labels.max()} is outside the model's {num_classes} classes; "
            f"labels must be from 0 to {num_classes - 1}"
        )
    present = np.zeros((len(labels), num_classes), dtype=bool)
    row, column = np.nonzero(labels != NO_LABEL)
    present[row, labels[row, column]] = True
    return present


def interval_of_share(flags: NDArray[Any], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Bootstrap a share; Wilson's interval if it is 0 or 1, where all resamples would be equal."""
    share = float(flags.mean())
    if share in (0.0, 1.0):
        low, high = wilson_interval(share, len(flags))
        return Interval(value=share, low=low, high=high)
    return interval_of(lambda rows: float(flags[rows].mean()), len(flags), seed=seed, resamples=resamples)


def interval_of(
    statistic: Callable[[NDArray[np.int64]], float],
    num_images: int,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Bootstrap any statistic of a selection of images (by index): percentiles over the resamples."""
    generator = np.random.default_rng(seed)
    drawn = [statistic(generator.integers(0, num_images, num_images)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value=statistic(np.arange(num_images)), low=float(low), high=float(high))


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` trials (Wilson, 1927), valid near 0 and 1 too."""
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return max(middle - half, 0.0), min(middle + half, 1.0)


def check_labels(labels: Classes, *, num_classes: int) -> None:
    """Refuse labels outside the model's classes."""
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        raise DataError(
            f"{counted(len(wrong), 'label')} outside the model's {num_classes} classes, the first is {wrong[0]}; "
            f"labels must be from 0 to {num_classes - 1}"
        )


def _ratio(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
