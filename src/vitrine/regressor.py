"""Predict numbers from pictures with scikit-learn's interface for regressors; it works without scikit-learn, too."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.decoding.picture_input import Picture
from vitrine.data.sources.in_memory import as_picture_list
from vitrine.errors import DataError
from vitrine.evaluation.number_line import NumberLine, fit_number_line
from vitrine.picture_estimator import PictureEstimator, picture_tags, scikit_learn


class VitRegressor(PictureEstimator):
    """Predict a number for each picture: a price, an age, a count, anything measured.

    The model is frozen, and ridge regression on its features is solved in closed form, in seconds; its strength is
    chosen on left-out pictures. Fitted attributes: `number_line_` with `mean_absolute_error` and `r2` of left-out
    pictures, `predictor_`.
    """

    _estimator_type = "regressor"  # for scikit-learn before 1.6

    def __init__(
        self,
        model: str | Path = "box",
        *,
        l2: float | None = None,
        batch_size: int | None = None,
        image_size: int | None = None,
        device: str = "auto",
        workers: int = 2,
    ) -> None:
        # scikit-learn's convention: stored as they are, checked in `fit`.
        self.model, self.l2, self.batch_size = model, l2, batch_size
        self.image_size, self.device, self.workers = image_size, device, workers

    def fit(self, X: Iterable[Picture], y: Iterable[float]) -> Self:
        """Learn from pictures and their numbers; unreadable pictures are refused."""
        pictures = as_picture_list(X)
        values = numbers_of(y, count=len(pictures))
        self.predictor_ = self._opened()
        features = self._outputs(pictures, "features")
        self.number_line_: NumberLine = fit_number_line(features, torch.from_numpy(values), l2=self.l2)
        return self

    def predict(self, X: Iterable[Picture]) -> NDArray[np.float64]:
        """Return the number of each picture: (N,)."""
        self._require_fitted()
        pictures = as_picture_list(X)
        if len(pictures) == 0:
            return np.zeros(0)
        return self.number_line_(self._outputs(pictures, "features")).numpy()

    def predict_interval(self, X: Iterable[Picture], *, coverage: float = 0.95) -> NDArray[np.float64]:
        """Return the ends of an interval per picture that holds its number with this probability: (N, 2)."""
        middle = self.predict(X)
        half = self.number_line_.half_width(coverage)
        return np.stack([middle - half, middle + half], axis=1)

    def score(self, X: Iterable[Picture], y: Iterable[float]) -> float:
        """Return R^2 on pictures and their numbers: 1 is perfect, 0 as good as always answering the mean."""
        pictures = as_picture_list(X)
        values = numbers_of(y, count=len(pictures))
        spread = float(np.square(values - values.mean()).sum())
        error = float(np.square(values - self.predict(pictures)).sum())
        return 1 - error / spread if spread else 0.0

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn (1.6 and later): a regressor of pictures, not of rows."""
        return picture_tags(
            "regressor", classifier_tags=None, regressor_tags=scikit_learn().utils.RegressorTags()
        )


def numbers_of(y: Iterable[float], *, count: int) -> NDArray[np.float64]:
    """Return one number per picture: (N,); refuse words, NaN and infinity."""
    try:
        values = np.asarray(y if hasattr(y, "__array__") else list(y), dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("y must be numbers; for classes use VitClassifier") from None
    if values.shape != (count,):
        raise DataError(f"y must have one number per picture, got {count} pictures and shape {values.shape}")
    if not np.isfinite(values).all():
        raise DataError("y contains NaN or infinity; remove these pictures")
    return values
