"""How well a model predicts numbers: errors, explained variance, and how often its ranges contain the true number.

Shapes: N images.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NumberFigures:
    """Predicted numbers compared with true ones."""

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
