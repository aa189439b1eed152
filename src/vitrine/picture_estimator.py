"""The base of estimators of pictures: scikit-learn's handling of options, the model, its features, errors."""

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.decoding.picture_input import Picture
from vitrine.data.sources.in_memory import as_picture_list
from vitrine.errors import ConfigError, DataError
from vitrine.serving.predictor import Predictor
from vitrine.spelling import nearest


class PictureEstimator:
    """An estimator whose rows are pictures; subclasses add `fit` and `predict`."""

    model: str | Path
    device: str
    image_size: int | None
    batch_size: int | None
    workers: int
    predictor_: Predictor

    def transform(self, X: Iterable[Picture]) -> NDArray[np.float32]:
        """Return the features of each picture, the input of the classification head: (N, R)."""
        self._require_fitted()
        return self._outputs(as_picture_list(X), "features").numpy()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options as they were passed."""
        return {name: getattr(self, name) for name in self._option_names()}

    def set_params(self, **options: Any) -> Self:
        """Change options; the fitted model stays until the next `fit`."""
        known = self._option_names()
        for name, value in options.items():
            if name not in known:
                raise ConfigError(
                    f"{type(self).__name__} has no option {name!r}; did you mean {nearest(name, known)[0]!r}?",
                    suggestions=nearest(name, known),
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{k}={v!r}" for k, v in self.get_params().items() if v != defaults[k].default]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether `fit` was called."""
        return hasattr(self, "predictor_")

    @classmethod
    def _option_names(cls) -> list[str]:
        return list(inspect.signature(cls).parameters)

    def _require_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise _not_fitted(f"this {type(self).__name__} is not fitted yet; call fit(pictures, y) first")

    def _opened(self) -> Predictor:
        return Predictor.open(
            self.model,
            device=self.device,
            image_size=self.image_size,
            batch_size=self.batch_size,
            workers=self.workers,
        )

    def _outputs(self, pictures: Sequence[Picture], wanted: Literal["logits", "features"]) -> Tensor:
        predictor = self.predictor_
        outputs = predictor.embed(pictures) if wanted == "features" else predictor.logits(pictures)
        if outputs.failures:
            number, why = next(iter(outputs.failures.items()))
            raise DataError(
                f"{len(outputs.failures)} of {len(pictures)} pictures cannot be read; the first, number {number}: "
                f"{why}"
            )
        return outputs.rows


def _not_fitted(sentence: str) -> Exception:
    """Build scikit-learn's own error if it is installed; the error is a `ConfigError` too."""
    sklearn = scikit_learn()
    known = AttributeError if sklearn is None else sklearn.exceptions.NotFittedError
    return type("NotFittedError", (ConfigError, known), {})(sentence)


def scikit_learn() -> Any:
    """Import scikit-learn; None if it is not installed, because the estimators work without it."""
    try:
        import sklearn.utils  # noqa: PLC0415 (an extra)
    except ImportError:
        return None
    return sklearn


def picture_tags(kind: str, **tags: Any) -> Any:
    """Describe an estimator of pictures to scikit-learn (1.6 and later)."""
    utils = scikit_learn().utils
    return utils.Tags(
        estimator_type=kind,
        target_tags=utils.TargetTags(required=True),
        transformer_tags=utils.TransformerTags(preserves_dtype=[]),
        input_tags=utils.InputTags(two_d_array=False, string=True),
        **tags,
    )
