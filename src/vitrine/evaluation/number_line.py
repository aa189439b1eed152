"""Predict a number from frozen features: ridge regression with leave-one-out errors and intervals; score predictions.

Every strength is scored on examples that its fit has not seen (features are normalised by all of them); the best one
predicts. The interval of a new picture is as wide as the errors of left-out examples: of N, the
ceil((N + 1) x coverage)-th smallest, as in the jackknife (arXiv:1905.02928, section 1).

Shapes: N examples or images, R features, M rows to predict.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.ridge import Normalisation

# Candidates for l2, weak to strong, for normalised features.
L2_CHOICES = tuple(float(2**power) for power in range(-4, 19, 2))
LEAST_EXAMPLES = 3
Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NumberLine:
    """A linear prediction of one number, and its errors on examples that were left out of the fit."""

    normalise: Normalisation
    weights: Tensor
    """(R,) in float64, on normalised features."""
    bias: Tensor
    l2: float
    left_out_errors: Tensor
    """(N,): true number less prediction, by fits without the example."""
    mean_absolute_error: float
    """Errors of left-out examples."""
    r2: float
    """Share of the variance that left-out predictions explain; 0 is as good as always answering the mean."""

    def __call__(self, features: Tensor) -> Tensor:
        """Predict the numbers of rows (M, R): (M,) in float64."""
        return self.normalise(features) @ self.weights + self.bias

    def half_width(self, coverage: float = 0.95) -> float:
        """Return half the width of an interval that holds the true number with this probability; maybe infinite."""
        return half_width(self.left_out_errors, coverage)

    def head(self) -> tuple[Tensor, Tensor]:
        """Return weight (1, R) and bias (1,) of the linear layer with these predictions, normalisation included."""
        weight = self.weights / self.normalise.std
        return weight[None], (self.bias - self.normalise.mean @ weight)[None]


def half_width(errors: Tensor, coverage: float = 0.95) -> float:
    """Return half the width of an interval that holds a number with this probability, from left-out errors (N,)."""
    if not 0 < coverage < 1:
        raise ConfigError(f"must be between 0 and 1, got {coverage:g}; 0.95 is usual", option="coverage")
    ordered = errors.abs().sort().values
    rank = math.ceil((len(ordered) + 1) * coverage)
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf


def fit_number_line(features: Tensor, values: Tensor, *, l2: float | None = None) -> NumberLine:
    """Fit features (N, R) to numbers (N,) at the strength with the least squared error on left-out examples."""
    if len(features) < LEAST_EXAMPLES:
        raise DataError(
            f"at least {LEAST_EXAMPLES} pictures are needed to predict a number, got {len(features)}"
        )
    if l2 is not None and not (l2 > 0 and math.isfinite(l2)):
        raise ConfigError(f"must be above 0, got {l2:g}", option="l2")
    targets = values.double()
    normalise = Normalisation.of(features)
    mean = float(targets.mean())
    # X = U S Vt; columns of X have mean 0, so the bias is the mean of the targets.
    U, S, Vt = torch.linalg.svd(normalise(features), full_matrices=False)  # (N, Q), (Q,), (Q, R)
    along = U.T @ (targets - mean)  # (Q,)

    def left_out(strength: float) -> Tensor:
        shrunk = S.square() / (S.square() + strength)  # (Q,)
        leverage = U.square() @ shrunk + 1 / len(targets)  # (N,)
        return (targets - mean - U @ (shrunk * along)) / (1 - leverage).clamp_min(
            torch.finfo(torch.float64).eps
        )

    choices = L2_CHOICES if l2 is None else (l2,)
    errors = {strength: left_out(strength) for strength in choices}
    best = min(choices, key=lambda strength: float(errors[strength].square().sum()))
    variance = float((targets - mean).square().sum())
    return NumberLine(
        normalise=normalise,
        weights=Vt.T @ (S / (S.square() + best) * along),
        bias=torch.tensor(mean, dtype=torch.float64),
        l2=best,
        left_out_errors=errors[best],
        mean_absolute_error=float(errors[best].abs().mean()),
        r2=1 - float(errors[best].square().sum()) / variance if variance else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class NumberFigures:
    """How well numbers are predicted: errors, explained variance, and how often ranges contain the true number."""

    name: str
    num_images: int
    mean_absolute_error: float
    median_error: float
    """The mean absolute error of always answering the median, to compare with."""
    r2: float
    """Share of the variance that is explained; 0 is as good as always answering the mean."""
    half_width: float | None = None
    """Half the width of the range of each prediction; None where the model does not know its errors."""
    covered: float | None = None
    """Share of the images whose true number is in the range."""


def score_numbers(
    predicted: Numbers, true: Numbers, *, name: str, half_width: float | None = None
) -> NumberFigures:
    """Compare predictions (N,) with true numbers (N,)."""
    errors = np.abs(true - predicted)
    spread = float(np.square(true - true.mean()).sum())
    return NumberFigures(
        name=name,
        num_images=len(true),
        mean_absolute_error=float(errors.mean()),
        median_error=float(np.abs(true - np.median(true)).mean()),
        r2=1 - float(np.square(errors).sum()) / spread if spread else 0.0,
        half_width=half_width,
        covered=None if half_width is None else float((errors <= half_width).mean()),
    )
