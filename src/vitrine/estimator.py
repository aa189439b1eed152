"""A ViT as scikit-learn's users know classifiers: `fit`, `predict`, `predict_proba`, `score`; needs no scikit-learn.

It stands beside the verbs: like them it wires rooms together, and nothing but the user imports it.
"""

import inspect
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import ConfigError, DataError
from vitrine.spelling import nearest

if TYPE_CHECKING:
    from torch import Tensor

    from vitrine.data.sources.in_memory import Picture, PictureList
    from vitrine.evaluation.closed_form import ClosedForm
    from vitrine.serving.predictor import Predictor

METHODS = ("features", "finetune")


class VitClassifier:
    """Classify pictures given as paths, bytes, Pillow images or arrays (H, W, C).

    `method="features"` leaves the model as it is and fits a linear classifier to its features in closed form, in
    seconds; `method="finetune"` trains all weights by the recipe of `vitrine finetune`, for `epochs` or `steps`.
    What is fitted ends in an underscore: `classes_`, `predictor_`, and by features `closed_form_`.
    """

    _estimator_type = "classifier"  # for scikit-learn before 1.6

    def __init__(
        self,
        model: str | Path = "box",
        *,
        method: Literal["features", "finetune"] = "features",
        l2: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        image_size: int | None = None,
        recipe: str = "photos",
        seed: int = 0,
        device: str = "auto",
        workers: int = 2,
        run_folder: str | Path | None = None,
    ) -> None:
        # As scikit-learn has it: kept as they are, looked at in `fit`.
        self.model, self.method, self.l2 = model, method, l2
        self.epochs, self.steps, self.batch_size, self.lr = epochs, steps, batch_size, lr
        self.image_size, self.recipe, self.seed = image_size, recipe, seed
        self.device, self.workers, self.run_folder = device, workers, run_folder

    def fit(self, X: "Sequence[Picture]", y: Sequence[Any]) -> Self:
        """Learn from pictures and their labels, which may be words or numbers; unreadable pictures are refused."""
        from vitrine.data.sources.in_memory import PictureList

        if self.method not in METHODS:
            raise ConfigError(f"method must be features or finetune, got {self.method!r}")
        labels = np.asarray(y)
        if labels.ndim != 1:
            raise DataError(f"y must have one label a picture, got an array of shape {labels.shape}")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"y must have two classes or more, got {len(self.classes_)}")
        source = PictureList(
            X, labels=numbers.astype(np.int32), classes=[str(label) for label in self.classes_]
        )
        self._fit_features(source) if self.method == "features" else self._fit_weights(source)
        return self

    def predict(self, X: "Sequence[Picture]") -> NDArray[Any]:
        """Return the most likely label of each picture: (N,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: "Sequence[Picture]") -> NDArray[np.float64]:
        """Return the probability of each class for each picture, in the order of `classes_`: (N, K)."""
        if not hasattr(self, "classes_"):
            raise ConfigError("this VitClassifier is not fitted yet; call fit(pictures, labels) first")
        if len(X) == 0:
            return np.zeros((0, len(self.classes_)))
        predictor = self.predictor_
        if self.method == "features":
            return self.closed_form_.probabilities(_readable(predictor, X, "features")).numpy()
        return _readable(predictor, X, "logits").double().softmax(dim=1).numpy()

    def score(
        self, X: "Sequence[Picture]", y: Sequence[Any], sample_weight: Sequence[float] | None = None
    ) -> float:
        """Return the share of pictures whose label is predicted right."""
        return float(np.average(self.predict(X) == np.asarray(y), weights=sample_weight))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options as they were given."""
        return {name: getattr(self, name) for name in _option_names()}

    def set_params(self, **options: Any) -> Self:
        """Change options; what was fitted stays until the next `fit`."""
        for name, value in options.items():
            if name not in _option_names():
                raise ConfigError(
                    f"VitClassifier has no option {name!r}; did you mean {nearest(name, _option_names())[0]!r}?"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(VitClassifier).parameters
        given = [f"{k}={v!r}" for k, v in self.get_params().items() if v != defaults[k].default]
        return f"VitClassifier({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn (1.6 and later), which alone asks, that this is a classifier."""
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            transformer_tags=None,
            regressor_tags=None,
        )

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether `fit` was called."""
        return hasattr(self, "classes_")

    def _fit_features(self, source: "PictureList") -> None:
        import torch

        from vitrine.evaluation.closed_form import fit_closed_form
        from vitrine.serving.predictor import Predictor

        self.predictor_: Predictor = Predictor.open(
            self.model, device=self.device, image_size=self.image_size, workers=self.workers
        )
        features = _readable(self.predictor_, source.pictures, "features")
        self.closed_form_: ClosedForm = fit_closed_form(
            features,
            torch.from_numpy(source.labels.astype(np.int64)),
            num_classes=len(self.classes_),
            l2=self.l2,
        )

    def _fit_weights(self, source: "PictureList") -> None:
        import dataclasses

        from vitrine.recipes.options import chosen_recipe
        from vitrine.runs.records import Execution, RunOutput
        from vitrine.runs.run_data import RunData
        from vitrine.runs.starting_model import pretrained_model
        from vitrine.runs.train_run import train_run
        from vitrine.runtime.output_folder import new_output_folder
        from vitrine.runtime.run_folder import RESULTS, RunFolder
        from vitrine.serving.predictor import Predictor

        chosen = chosen_recipe(
            self.recipe, epochs=self.epochs, steps=self.steps, batch_size=self.batch_size, lr=self.lr,
            size=self.image_size, seed=self.seed,
        ).with_steps_for(len(source))  # fmt: skip
        start = pretrained_model(str(self.model), chosen, num_classes=len(self.classes_))
        with tempfile.TemporaryDirectory(prefix="vitrine-") as temporary:
            folder = Path(temporary if self.run_folder is None else self.run_folder)
            run = RunFolder(new_output_folder(folder, verb="fit", files=RESULTS))
            train_run(
                start,
                RunData(address=source.address, splits={"train": source}, hold_out=0.0),
                dataclasses.replace(chosen, model=str(self.model)),
                execution=Execution(device=self.device, workers=self.workers),
                output=RunOutput(folder=run, verb="fit", reports=False),
            )
            self.predictor_ = Predictor.open(run.model, device=self.device, workers=self.workers)


def _option_names() -> list[str]:
    return list(inspect.signature(VitClassifier).parameters)


def _readable(
    predictor: "Predictor", pictures: "Sequence[Picture]", wanted: Literal["logits", "features"]
) -> "Tensor":
    outputs = predictor.embed(pictures) if wanted == "features" else predictor.logits(pictures)
    if outputs.failures:
        number, why = next(iter(outputs.failures.items()))
        raise DataError(
            f"{len(outputs.failures)} of {len(pictures)} pictures cannot be read; the first, number {number}: {why}"
        )
    return outputs.rows
