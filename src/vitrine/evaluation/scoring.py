"""One scoring of a labelled split: from a model's logits to metrics, worst classes and mistakes.

A run's report, the result of training and `vitrine evaluate` all read it, so that they agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.calibration import calibration_error, softmax
from vitrine.evaluation.classification import MultiLabel, SingleLabel, score_multi_label, score_single_label
from vitrine.evaluation.metrics import Interval
from vitrine.evaluation.outputs import Outputs
from vitrine.evaluation.real import RealLabels
from vitrine.spelling import printable

ClassMeasure = Literal["f1", "average_precision"]
"""The measure that ranks classes: F1 with one label per image, average precision with several."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """An image classified as something other than its label."""

    path: str
    label: str
    predicted: str
    confidence: float


@dataclass(frozen=True, kw_only=True)
class SplitScore:
    """A model's outputs on one split, and the figures that follow from them."""

    source: Source
    split: str
    outputs: Outputs
    figures: SingleLabel | MultiLabel

    @property
    def class_measure(self) -> ClassMeasure:
        """The measure that ranks `worst_classes`."""
        return "f1" if isinstance(self.figures, SingleLabel) else "average_precision"

    @property
    def accuracy(self) -> float | None:
        """Share of the images classified correctly; None with several labels per image."""
        return self.figures.top1.value if isinstance(self.figures, SingleLabel) else None

    @property
    def mean_average_precision(self) -> Interval | None:
        """Mean over the classes with images; None with one label per image."""
        return None if isinstance(self.figures, SingleLabel) else self.figures.mean_average_precision

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """Probabilities (N, K) of all images: a softmax, or a sigmoid per class with several labels per image."""
        rows = self.outputs.rows
        return rows.sigmoid().numpy() if self.source.is_multi_label else softmax(rows.numpy())

    @property
    def worst_classes(self) -> list[tuple[str, float]]:
        """Classes and their measure, lowest first; classes without images have none."""
        if isinstance(self.figures, SingleLabel):
            pairs = [(figure.name, figure.f1) for figure in self.figures.per_class if figure.num_images]
        else:
            pairs = list(self.figures.average_precision.items())
        return sorted(
            ((printable(name), value) for name, value in pairs if value is not None), key=lambda item: item[1]
        )

    @cached_property
    def mistaken(self) -> NDArray[np.int64]:
        """Indices of the images classified wrongly, most confident first; none with several labels per image."""
        if self.source.is_multi_label:
            return np.empty(0, dtype=np.int64)
        readable = np.flatnonzero(self.outputs.readable)
        return readable[confident_mistakes(self.probabilities[readable], self.source.labels[readable])]

    def mistakes(self, count: int) -> tuple[Mistake, ...]:
        """Return the `count` most confident mistakes."""
        source, rows = self.source, self.probabilities
        return tuple(
            Mistake(
                path=printable(source.name(index)),
                label=printable(source.classes[int(source.labels[index])]),
                predicted=printable(source.classes[int(rows[index].argmax())]),
                confidence=float(rows[index].max()),
            )
            for index in self.mistaken[:count].tolist()
        )


def score_split(
    outputs: Outputs, source: Source, *, split: str, real: RealLabels | None = None, seed: int = 0
) -> SplitScore:
    """Score logits (N, K), in the order of `source`, against its labels; unreadable images are not counted.

    `real` holds ReaL's accepted classes per image, in the same order. `seed` draws the resamples of the intervals.
    """
    keep = outputs.readable
    logits, labels = outputs.rows.numpy()[keep], source.labels[keep]
    if source.is_multi_label:
        if real is not None:
            raise ConfigError(f"needs one label per image; {source.address} has several", option="real")
        figures: SingleLabel | MultiLabel = score_multi_label(
            logits, labels, classes=source.classes, seed=seed
        )
    else:
        figures = score_single_label(
            logits, labels, classes=source.classes, real=_rows_kept(real, keep), seed=seed
        )
    return SplitScore(source=source, split=split, outputs=outputs, figures=figures)


def confident_mistakes(probabilities: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows that are classified wrongly, most confident first."""
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    return wrong[np.argsort(-probabilities[wrong].max(axis=1), kind="stable")]


def likely_label_errors(probabilities: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the images whose label is likely wrong, most suspect first, from probabilities (N, K) and labels (N,).

    After confident learning (arXiv:1911.00068): a class's threshold is the mean probability that the model gives it
    on images with that label. An image is suspect if another class reaches its own threshold and wins.
    """
    num_classes = probabilities.shape[1]
    counts = np.bincount(labels, minlength=num_classes)
    own = np.take_along_axis(probabilities, labels[:, None].astype(np.int64), axis=1)[:, 0]
    sums = np.bincount(labels, weights=own, minlength=num_classes)
    # A class without images has no threshold, so it never makes an image suspect.
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    best = probabilities.argmax(axis=1)
    best_probability = probabilities.max(axis=1)
    is_suspect = (best != labels) & (best_probability >= thresholds[best])
    suspects = np.flatnonzero(is_suspect)
    return suspects[np.argsort(own[suspects] - best_probability[suspects], kind="stable")]


def _rows_kept(real: RealLabels | None, keep: NDArray[np.bool_]) -> RealLabels | None:
    if real is None:
        return None
    return [accepted for accepted, is_kept in zip(real, keep, strict=True) if is_kept]


def uncalibrated_error(score: SplitScore, calibration: Mapping[str, Any] | None) -> float | None:
    """Return the expected calibration error of the logits before they were calibrated."""
    if calibration is None or score.source.is_multi_label:
        return None
    keep = score.outputs.readable
    logits = calibration["temperature"] * score.outputs.rows[torch.from_numpy(keep)]
    return calibration_error(logits, torch.from_numpy(score.source.labels[keep]).long())
