"""A ViT with scikit-learn's interface for classifiers; it works without scikit-learn, too.

Like the verbs it wires rooms together; nothing but the user imports it.
"""

import dataclasses
import math
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.decoding.picture_input import Picture
from vitrine.data.sources.in_memory import PictureList, as_picture_list
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.closed_form import ClosedForm, fit_closed_form
from vitrine.evaluation.familiarity import fit_familiarity
from vitrine.evaluation.prediction_sets import held_out_scores, prediction_sets
from vitrine.evaluation.trust import Trust
from vitrine.jobs.model_argument import own_max_patches, trained_weights
from vitrine.picture_estimator import PictureEstimator, picture_tags, scikit_learn
from vitrine.recipes.options import chosen_recipe
from vitrine.runs.records import Execution, RunOutput
from vitrine.runs.run_data import Division, RunData
from vitrine.runs.solved_head import with_solved_head
from vitrine.runs.starting_model import pretrained_model
from vitrine.runs.train_run import train_run
from vitrine.runtime.output_folder import new_output_folder
from vitrine.runtime.processes import joined_processes
from vitrine.runtime.run_folder import RESULTS, RunFolder
from vitrine.serving.predictor import Predictor

METHODS = ("features", "finetune")


class VitClassifier(PictureEstimator):
    """Classify pictures: paths, bytes, Pillow images or arrays (H, W, C), in a list, a pandas column or a generator.

    `method="features"` freezes the model and fits a linear classifier to its features in closed form, in seconds;
    `method="finetune"` trains all weights with a fine-tuning recipe, for `epochs` or `steps`. `batch_size` is the
    number of images per batch. Fitted attributes: `classes_`, `predictor_`, and with features `closed_form_`.
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
        # scikit-learn's convention: stored as they are, checked in `fit`.
        self.model, self.method, self.l2 = model, method, l2
        self.epochs, self.steps, self.batch_size, self.lr = epochs, steps, batch_size, lr
        self.image_size, self.recipe, self.seed = image_size, recipe, seed
        self.device, self.workers, self.run_folder = device, workers, run_folder

    def fit(
        self, X: Iterable[Picture], y: Iterable[Any], sample_weight: Iterable[float] | None = None
    ) -> Self:
        """Learn from pictures and their labels, which may be words or whole numbers; unreadable pictures are refused.

        `sample_weight` is the weight of each picture; only `method="features"` supports it.
        """
        if self.method not in METHODS:
            raise ConfigError(f"must be features or finetune, got {self.method!r}", option="method")
        pictures = as_picture_list(X)
        labels = labels_of(y, count=len(pictures))
        weights = weights_of(sample_weight, labels)
        if weights is not None and self.method == "finetune":
            raise ConfigError("is supported by method='features' only", option="sample_weight")
        classes, numbers = np.unique(labels, return_inverse=True)
        present = np.unique(numbers if weights is None else numbers[weights > 0])
        if len(present) < 2:
            raise DataError(f"y must have at least two classes, got {'1 class' if len(present) else 'none'}")
        source = PictureList(
            pictures, labels=numbers.astype(np.int32), classes=[str(label) for label in classes]
        )
        if self.method == "features":
            self._fit_features(source, weights)
        else:
            self._fit_weights(source)
        self.classes_ = classes
        return self

    def predict(self, X: Iterable[Picture]) -> NDArray[Any]:
        """Return the most likely label of each picture: (N,)."""
        best = self._scores(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Iterable[Picture]) -> NDArray[np.float64]:
        """Return the probability of each class for each picture, in the order of `classes_`: (N, K)."""
        return torch.from_numpy(self._scores(X)).softmax(dim=1).numpy()

    def none_of_these(self, X: Iterable[Picture]) -> NDArray[np.bool_]:
        """Return which pictures look like none of the classes: less like them than 95 % of left-out pictures (N,)."""
        self._require_fitted()
        known = self.predictor_.trust.familiarity
        assert known is not None  # every fit measures it
        pictures = as_picture_list(X)
        if len(pictures) == 0:
            return np.zeros(0, dtype=bool)
        return (known.distance(self._outputs(pictures, "features")) > known.threshold).numpy()

    def predict_set(self, X: Iterable[Picture], *, coverage: float = 0.95) -> NDArray[np.bool_]:
        """Return the classes that contain the true one with this probability: (N, K), in the order of `classes_`."""
        logits = torch.from_numpy(self._scores(X))
        held_out = self.predictor_.trust.held_out
        if held_out is None:
            raise ConfigError(
                "needs method='features', which leaves every picture out once", option="coverage"
            )
        thresholds = held_out.thresholds(coverage, num_classes=len(self.classes_))
        return prediction_sets(logits.softmax(dim=1), thresholds)

    def decision_function(self, X: Iterable[Picture]) -> NDArray[np.float64]:
        """Return the logits of the classes: (N, K); with two classes, the log-odds of the second: (N,)."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def fit_transform(self, X: Iterable[Picture], y: Iterable[Any], **fit_params: Any) -> NDArray[np.float32]:
        """Fit, then return the features of the same pictures: (N, R)."""
        pictures = as_picture_list(X)
        return self.fit(pictures, y, **fit_params).transform(pictures)

    def score(
        self, X: Iterable[Picture], y: Iterable[Any], sample_weight: Iterable[float] | None = None
    ) -> float:
        """Return the accuracy on pictures and their labels."""
        pictures = as_picture_list(X)
        labels = labels_of(y, count=len(pictures))
        return float(np.average(self.predict(pictures) == labels, weights=weights_of(sample_weight, labels)))

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn (1.6 and later): a classifier of pictures, not of rows."""
        return picture_tags(
            "classifier", classifier_tags=scikit_learn().utils.ClassifierTags(), regressor_tags=None
        )

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether `fit` was called."""
        return hasattr(self, "classes_")

    def _scores(self, X: Iterable[Picture]) -> NDArray[np.float64]:
        """Return the logits of all classes: (N, K)."""
        self._require_fitted()
        pictures = as_picture_list(X)
        if len(pictures) == 0:
            return np.zeros((0, len(self.classes_)))
        if self.method == "features":
            features = self._outputs(pictures, "features")
            return self.closed_form_.logits(features).numpy()
        return self._outputs(pictures, "logits").double().numpy()

    def _fit_features(self, source: PictureList, weights: NDArray[np.float64] | None) -> None:
        self.predictor_ = self._opened()
        features = self._outputs(source.pictures, "features")
        labels = torch.from_numpy(source.labels.astype(np.int64))
        self.closed_form_: ClosedForm = fit_closed_form(
            features,
            labels,
            num_classes=len(source.classes),
            l2=self.l2,
            weights=None if weights is None else torch.from_numpy(weights),
        )
        counted = (
            torch.ones(len(labels), dtype=torch.bool) if weights is None else torch.from_numpy(weights > 0)
        )
        left_out = self.closed_form_.left_out_logits.softmax(dim=1)
        self.predictor_.trust = Trust(
            familiarity=fit_familiarity(features[counted], labels[counted], seed=self.seed),
            held_out=held_out_scores(left_out, labels[counted]),
        )

    def _fit_weights(self, source: PictureList) -> None:
        model = str(self.model)
        weights = trained_weights(model) if self.image_size is None else None
        chosen = chosen_recipe(
            self.recipe, epochs=self.epochs, steps=self.steps, batch_size=self.batch_size, lr=self.lr,
            size=self.image_size, seed=self.seed,
            max_patches=own_max_patches(weights),
        ).with_steps_for(len(source))  # fmt: skip
        start = pretrained_model(model, chosen, num_classes=len(source.classes), weights=weights)
        del weights  # a file of torch's oldest format is in memory as a whole
        if chosen.solves_head:
            with joined_processes(self.device) as processes:
                start, _ = with_solved_head(
                    start, source, is_balanced=chosen.is_balanced, workers=self.workers, processes=processes,
                    seed=self.seed,
                )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="vitrine-") as temporary:
            folder = Path(temporary if self.run_folder is None else self.run_folder)
            run = RunFolder(new_output_folder(folder, verb="fit", files=RESULTS))
            train_run(
                start,
                RunData(address=source.address, splits={"train": source}, division=Division(hold_out=0.0)),
                dataclasses.replace(chosen, model=model),
                execution=Execution(device=self.device, workers=self.workers),
                output=RunOutput(folder=run, verb="fit", reports=False),
            )
            self.predictor_ = Predictor.open(run.model, device=self.device, workers=self.workers)


def labels_of(y: Iterable[Any], *, count: int) -> NDArray[Any]:
    """Return one label per picture: (N,); refuse NaN and continuous numbers."""
    if y is None:
        raise DataError("y is required: VitClassifier requires y to be passed, but the target y is None")
    values: Any = y if hasattr(y, "__array__") else list(y)
    labels = np.asarray(values)
    # Checked in the list: numpy would write a NaN among words as the word "nan".
    if any(map(_is_missing, values if isinstance(values, list) else labels.ravel().tolist())):
        raise DataError("Input y contains NaN or missing values; remove these pictures")
    if labels.ndim == 2 and labels.shape[1] == 1:
        problem = "A column-vector y was passed when a 1d array was expected; pass y.ravel()"
        warnings.warn(problem, _conversion_warning(), stacklevel=3)
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"y must have one label per picture, got an array of shape {labels.shape}")
    if len(labels) != count:
        raise DataError(f"X and y must have the same length, got {count} pictures and {len(labels)} labels")
    if labels.dtype.kind == "c":
        raise DataError("Unknown label type: complex numbers; labels must be words or whole numbers")
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise DataError("Input y contains infinity")
        if (labels != np.round(labels)).any():
            raise DataError("Unknown label type: continuous; labels must be words or whole numbers")
    return labels


def _is_missing(label: Any) -> bool:
    is_nan = isinstance(label, float) and math.isnan(label)
    return label is None or is_nan or type(label).__name__ in ("NAType", "NaTType")  # pandas' own


def weights_of(sample_weight: Iterable[float] | None, labels: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return one weight per label: (N,), or None; refuse negative ones, NaN and all zeros."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(len(labels), float(weights))
    if weights.shape != labels.shape:
        raise DataError(
            f"sample_weight must have one number per picture, got an array of shape {weights.shape}"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise DataError("sample_weight must be finite and at least 0")
    if not weights.any():
        raise DataError("sample_weight must not be zero for every picture")
    return weights


def _conversion_warning() -> type[Warning]:
    sklearn = scikit_learn()
    return UserWarning if sklearn is None else sklearn.exceptions.DataConversionWarning
