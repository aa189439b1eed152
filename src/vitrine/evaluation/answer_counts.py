"""Accuracy, calibration and confusion from answers alone, counted batch by batch in bounded memory.

Logits of a hundred million pictures and a thousand classes take 400 GB; the counts are one table of classes by
classes.

Shapes: N pictures, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.evaluation.calibration import BINS, ReliabilityBin
from vitrine.evaluation.metrics import ClassFigures, Interval, class_figures, macro_average, wilson_interval


@dataclass(frozen=True, kw_only=True)
class AnswerFigures:
    """Scores from answers and labels alone: without logits there is no log loss and no Brier score."""

    num_images: int
    top1: Interval
    top5: Interval | None
    """None where fewer than five answers were kept, or with five classes or fewer."""
    macro_precision: float
    macro_recall: float
    macro_f1: float
    num_classes_present: int
    ece: float
    mean_confidence: float
    bins: tuple[ReliabilityBin, ...]
    per_class: tuple[ClassFigures, ...]
    confusion: NDArray[np.int64]


class AnswerCounts:
    """Counts of labels, answers and confidences; classes are known when they are first seen."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._confusion = np.zeros((0, 0), dtype=np.int64)
        self._num_among_first = 0
        self._bins = np.zeros((3, BINS))  # pictures, sum of confidences, pictures that are right

    @property
    def num_images(self) -> int:
        """How many pictures were counted."""
        return int(self._confusion.sum())

    def numbers(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Number classes by name; new ones get the next numbers."""
        places = np.array(
            [self._places.setdefault(name, len(self._places)) for name in names], dtype=np.int64
        )
        more = len(self._places) - len(self._confusion)
        if more:
            self._confusion = np.pad(self._confusion, ((0, more), (0, more)))
        return places

    def add(
        self,
        labels: NDArray[np.int64],
        predicted: NDArray[np.int64],
        confidence: NDArray[np.float64],
        *,
        is_among_first: NDArray[np.bool_],
    ) -> None:
        """Count pictures (N,) by the numbers of `numbers`; `is_among_first`: the label is one of the answers."""
        num_classes = len(self._confusion)
        pairs = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
        self._confusion += pairs.reshape(num_classes, num_classes)
        self._num_among_first += int(is_among_first.sum())
        edges = np.linspace(0, 1, BINS + 1)
        place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
        for row, weights in enumerate((None, confidence, (labels == predicted).astype(np.float64))):
            self._bins[row] += np.bincount(place, weights=weights, minlength=BINS)

    def figures(self, *, num_answers: int) -> AnswerFigures:
        """Return all figures; classes are in the order of their names."""
        names = sorted(self._places)
        order = [self._places[name] for name in names]
        confusion = self._confusion[np.ix_(order, order)]
        per_class = class_figures(confusion, tuple(names))
        bins = self._reliability()
        total = self.num_images
        has_top5 = num_answers >= 5 and len(names) > 5
        return AnswerFigures(
            num_images=total,
            top1=_interval(int(np.trace(confusion)), total),
            top5=_interval(self._num_among_first, total) if has_top5 else None,
            macro_precision=macro_average(per_class, name="precision"),
            macro_recall=macro_average(per_class, name="recall"),
            macro_f1=macro_average(per_class, name="f1"),
            num_classes_present=sum(one.num_images > 0 for one in per_class),
            ece=sum(b.num_images * abs((b.confidence or 0) - (b.accuracy or 0)) for b in bins) / total,
            mean_confidence=float(self._bins[1].sum()) / total,
            bins=bins,
            per_class=per_class,
            confusion=confusion,
        )

    def _reliability(self) -> tuple[ReliabilityBin, ...]:
        counts, confidences, right = self._bins
        edges = np.linspace(0, 1, BINS + 1)
        return tuple(
            ReliabilityBin(
                low=float(edges[number]),
                high=float(edges[number + 1]),
                num_images=int(count),
                confidence=float(confidences[number] / count) if count else None,
                accuracy=float(right[number] / count) if count else None,
            )
            for number, count in enumerate(counts)
        )


def _interval(right: int, total: int) -> Interval:
    """Return a share with Wilson's interval, which needs no resamples."""
    low, high = wilson_interval(right / total, total)
    return Interval(value=right / total, low=low, high=high)
