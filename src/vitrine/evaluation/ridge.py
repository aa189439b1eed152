"""Regularised least squares in closed form: the paper's few-shot linear classifier (section 4.1).

Shapes: N support examples, D features with the constant one, K classes, M test examples.
Everything is float64: answers are accurate to 1e-9, and XtX squares the condition number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrine.errors import ConfigError

# The constant feature: so large that the bias is practically unregularised.
BIAS_FEATURE = 100.0
STD_FLOOR = 1e-5
DEFAULT_L2 = 1024.0
# Test rows per block: 4096 x 1000 classes in float64 are 33 MB.
_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """Mean and population standard deviation (+ 1e-5) of a support set, both (D - 1,)."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, support: Tensor, *, weights: Tensor | None = None) -> "Normalisation":
        """Measure the support set (N, D - 1), each row counted `weights` (N,) times."""
        support = support.double()
        if weights is None:
            return cls(mean=support.mean(dim=0), std=support.std(dim=0, correction=0) + STD_FLOOR)
        shares = (weights.double() / weights.double().sum())[:, None]  # (N, 1)
        mean = (shares * support).sum(dim=0)
        variance = (shares * (support - mean).square()).sum(dim=0)
        return cls(mean=mean, std=variance.sqrt() + STD_FLOOR)

    def __call__(self, features: Tensor) -> Tensor:
        """Normalise features (M, D - 1) in float64."""
        return (features.double() - self.mean) / self.std


class RidgeClassifiers:
    """One linear classifier per l2, fitted on normalised support features with one eigendecomposition."""

    def __init__(self, support: Tensor, labels: Tensor, *, num_classes: int, l2: Sequence[float]) -> None:
        for value in l2:
            if not value > 0:
                raise ConfigError(
                    f"must be above 0, got {value:g}; the paper's protocol uses 1024", option="l2"
                )
        self.normalise = Normalisation.of(support)
        X = with_constant(self.normalise(support))  # (N, D)
        Y = 2 * torch.nn.functional.one_hot(labels, num_classes).double() - 1  # (N, K)
        self.weights = list(ridge_solutions(X, Y, l2=l2))  # one (D, K) per l2

    def predict(self, features: Tensor) -> Tensor:
        """Return the class of each test row, per l2: (number of l2, M)."""
        parts = [
            torch.stack([(rows @ W).argmax(dim=1) for W in self.weights])
            for rows in (with_constant(self.normalise(chunk)) for chunk in torch.split(features, _ROWS))
        ]
        return torch.cat(parts, dim=1)


def ridge_solutions(X: Tensor, Y: Tensor, *, l2: Sequence[float]) -> Iterator[Tensor]:
    """Yield W (D, K) per l2: (XtX + l I)^-1 XtY, in the smaller of the two equal formulations."""
    N, D = X.shape
    if N >= D:
        values, vectors = torch.linalg.eigh(X.T @ X)  # (D,), (D, D)
        left, right = vectors, vectors.T @ (X.T @ Y)  # (D, D), (D, K)
    else:
        # Fewer examples than features, so solve the small (N, N) system:
        # Xt (XXt + l I)^-1 Y equals (XtX + l I)^-1 XtY.
        values, vectors = torch.linalg.eigh(X @ X.T)  # (N,), (N, N)
        left, right = X.T @ vectors, vectors.T @ Y  # (D, N), (N, K)
    for value in l2:
        yield left @ (right / (values + value)[:, None])


def with_constant(features: Tensor) -> Tensor:
    """Append the constant feature: (N, D - 1) to (N, D)."""
    return torch.nn.functional.pad(features, (0, 1), value=BIAS_FEATURE)
