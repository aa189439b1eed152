"""The answers of a model: classes with probabilities, numbers with intervals, one record per picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vitrine.errors import ConfigError
from vitrine.evaluation.number_line import half_width

Wanted = Literal["logits", "features", "scores", "both"]
"""`scores` are logits followed by the distance from the training images, if the model has statistics for it; `both`
are logits and features."""
TOP = 5
# Default coverage of the interval of a number.
DEFAULT_COVERAGE = 0.95
# Minimum probability of a label that applies, for models with several labels per picture.
APPLIES = 0.5


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One class and its probability."""

    label: str
    number: int
    """Index among the logits, from 0."""
    probability: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The most likely classes of one picture, most likely first, or why it cannot be read."""

    name: str
    answers: tuple[Answer, ...] = ()
    labels: tuple[str, ...] | None = None
    """With several labels per picture, those with a probability of at least one half; None with one per picture."""
    error: str | None = None
    familiarity: float | None = None
    """Share of held-out images that are at least as far from the training images; None if that is unknown."""
    none_of_these: bool | None = None
    """Whether it is farther from the training images than 95 % of the held-out ones (than all, if they are few)."""
    number: float | None = None
    """The predicted number, from a model of numbers; it has no answers."""
    interval: tuple[float, float] | None = None
    """Ends of the range that contains the true number with the requested coverage [default: 0.95]."""
    prediction_set: tuple[str, ...] | None = None
    """Classes that contain the true one with the requested coverage, most likely first."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The model's output for consecutive pictures: (B, K) or (B, R) float32, and the errors of unreadable ones.

    `start` is the number of the first picture; `failures` counts from there, and their rows are 0.
    """

    start: int
    values: Tensor
    failures: dict[int, str]


def number_predictions(
    values: Tensor, names: Sequence[str], *, errors: Tensor | None, coverage: float | None
) -> list[Prediction]:
    """Turn outputs (B,) of a model of numbers into predictions with intervals, where its `errors` are known."""
    half = interval_half_width(errors, DEFAULT_COVERAGE if coverage is None else coverage)
    return [
        Prediction(name=name, number=value, interval=None if half is None else (value - half, value + half))
        for name, value in zip(names, values.tolist(), strict=True)
    ]


def interval_half_width(errors: Tensor | None, coverage: float) -> float | None:
    """Return half the width of the interval of a number; None where the errors of left-out images are unknown."""
    if errors is None:
        return None
    half = half_width(errors, coverage)
    if math.isinf(half):
        raise ConfigError(
            f"{coverage:g} needs {math.ceil(coverage / (1 - coverage))} training images, and this model has "
            f"{len(errors)}",
            option="coverage",
        )
    return half
