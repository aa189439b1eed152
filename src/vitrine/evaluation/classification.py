"""Everything that is said of a classifier on one test set, from its logits (N, K) and the labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.labels import match_classes
from vitrine.data.sources.source import NO_LABEL, Source
from vitrine.errors import ConfigError, DataError
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
from vitrine.spelling import counted

TOP = 5
# A resample of average precision sorts every class anew, so fewer are drawn.
MAP_RESAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class SingleLabel:
    """Figures of images with one label each."""

    num_images: int
    top1: Interval
    top5: Interval | None
    """None where there are five classes or fewer: it would be 100 %."""
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
    """By class; None for a class that no image has, which is left out of the mean."""
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
            raise DataError("every list of real.json is empty, so there is nothing to score")
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
    """Measure mean average precision of logits (N, K) on label lists (N, M) filled up with -1."""
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


def in_model_classes(
    source: Source, classes: Sequence[str] | None, *, num_outputs: int | None, by_order: bool = False
) -> Source:
    """Number the labels as the model does: by name, or by order where asked or where it has no names."""
    if num_outputs is None:
        raise ConfigError("the model has no head, so it makes no predictions; try vitrine fewshot")
    if not source.is_labelled:
        raise DataError(f"{source.address} has no labels, so there is nothing to compare predictions with")
    if classes is not None and not by_order:
        try:
            source = match_classes(source, classes)
        except DataError as error:
            if len(source.classes) != num_outputs:
                raise
            # ImageNet's folders are numbers and most models' classes are words: as many, in the same order.
            raise DataError(f"{error}; if both lists are in the same order, say --by-order") from None
    elif len(source.classes) != num_outputs:
        why = "the classes are to be matched by order" if by_order else "the model carries no class names"
        raise DataError(
            f"{why}, and {source.address} has {len(source.classes)} classes while the model has {num_outputs} "
            "outputs; they must be as many"
        )
    if not source.is_multi_label and bool((source.labels == NO_LABEL).any()):
        count = int((source.labels == NO_LABEL).sum())
        raise DataError(
            f"without a label: {counted(count, 'image')} of {source.address}; leave it out or label it"
        )
    return source


def in_model_numbers(real: RealLabels, source: Source, matched: Source) -> RealLabels:
    """Number ReaL's lists, which count ImageNet's classes as the data set does, as the model does."""
    if source.classes == matched.classes:
        return real
    number = {name: index for index, name in enumerate(matched.classes)}
    most = max((max(accepted, default=0) for accepted in real), default=0)
    if most >= len(source.classes):
        raise DataError(
            f"real.json names class {most}, but {source.address} has {len(source.classes)} classes; it must be "
            "ImageNet's validation set with all its class folders"
        )
    return [[number.get(source.classes[k], NO_LABEL) for k in accepted] for accepted in real]


def _require_match(logits: NDArray[Any], labels: NDArray[Any], classes: Sequence[str]) -> None:
    if logits.ndim != 2 or len(logits) != len(labels) or logits.shape[1] != len(classes):
        raise DataError(
            f"logits must be (images, classes), here ({len(labels)}, {len(classes)}), got {logits.shape}"
        )
    if len(labels) == 0:
        raise DataError("there are no images to score")
