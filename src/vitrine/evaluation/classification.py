"""All figures of a classifier on one test set, from its logits (N, K) and the labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import DataError
from vitrine.evaluation.calibration import Calibration, measure_calibration, softmax
from vitrine.evaluation.metrics import (
    RESAMPLES,
    ClassFigures,
    Interval,
    average_precisions,
    class_figures,
    confusion_matrix,
    interval_of,
    interval_of_share,
    macro_average,
    mean_average_precision,
    presence,
    top_k_correct,
)
from vitrine.evaluation.real import RealLabels, real_correct

TOP = 5
# Each resample of average precision sorts every class again, so fewer are drawn.
MAP_RESAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class SingleLabel:
    """Figures of images with one label each."""

    num_images: int
    top1: Interval
    top5: Interval | None
    """None with five classes or fewer: it would be 100 %."""
    macro_precision: float
    macro_recall: float
    macro_f1: float
    num_classes_present: int
    """The macro averages are over the classes that have images."""
    calibration: Calibration
    per_class: tuple[ClassFigures, ...]
    confusion: NDArray[np.int64]
    real: Interval | None = None
    num_real_images: int | None = None


@dataclass(frozen=True, kw_only=True)
class MultiLabel:
    """Figures of images with any number of labels."""

    num_images: int
    mean_average_precision: Interval
    average_precision: dict[str, float | None]
    """By class; None for a class without images, which is not part of the mean."""
    num_classes_present: int


def score_single_label(
    logits: NDArray[Any],
    labels: NDArray[Any],
    *,
    classes: Sequence[str],
    real: RealLabels | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> SingleLabel:
    """Measure accuracy, per-class figures, confusion and calibration of logits (N, K) on labels (N,)."""
    _require_match(logits, labels, classes)
    top1 = top_k_correct(logits, labels, k=1)
    predicted = logits.argmax(axis=1)
    confusion = confusion_matrix(predicted, labels, num_classes=len(classes))
    figures = class_figures(confusion, tuple(classes))
    top5 = None
    if len(classes) > TOP:
        top5 = interval_of_share(top_k_correct(logits, labels, k=TOP), seed=seed, resamples=resamples)
    real_interval, counted = None, None
    if real is not None:
        counts, right = real_correct(predicted, real)
        if not counts.any():
            raise DataError("every list of real.json is empty; there is nothing to score")
        counted = int(counts.sum())
        real_interval = interval_of_share(right[counts], seed=seed, resamples=resamples)
    return SingleLabel(
        num_images=len(labels),
        top1=interval_of_share(top1, seed=seed, resamples=resamples),
        top5=top5,
        macro_precision=macro_average(figures, name="precision"),
        macro_recall=macro_average(figures, name="recall"),
        macro_f1=macro_average(figures, name="f1"),
        num_classes_present=sum(figure.num_images > 0 for figure in figures),
        calibration=measure_calibration(softmax(logits), labels),
        per_class=figures,
        confusion=confusion,
        real=real_interval,
        num_real_images=counted,
    )


def score_multi_label(
    logits: NDArray[Any],
    labels: NDArray[Any],
    *,
    classes: Sequence[str],
    seed: int = 0,
    resamples: int = MAP_RESAMPLES,
) -> MultiLabel:
    """Measure mean average precision of logits (N, K) on label lists (N, M) padded with -1."""
    _require_match(logits, labels, classes)
    present = presence(labels, num_classes=len(classes))
    values = average_precisions(logits, present)
    interval = interval_of(
        lambda rows: mean_average_precision(logits[rows], present[rows]),
        len(labels),
        seed=seed,
        resamples=resamples,
    )
    return MultiLabel(
        num_images=len(labels),
        mean_average_precision=interval,
        average_precision={
            name: None if np.isnan(value) else float(value)
            for name, value in zip(classes, values, strict=True)
        },
        num_classes_present=int((~np.isnan(values)).sum()),
    )


def _require_match(logits: NDArray[Any], labels: NDArray[Any], classes: Sequence[str]) -> None:
    if logits.ndim != 2 or len(logits) != len(labels) or logits.shape[1] != len(classes):
        raise DataError(
            f"logits must have shape (images, classes) = ({len(labels)}, {len(classes)}), got {logits.shape}"
        )
    if len(labels) == 0:
        raise DataError("no images to score")
