"""A model ready to predict: from paths, bytes, Pillow images or arrays to classes, logits and features.

Pictures are prepared as in evaluation: the same decoder, the same `Preprocess` record, the same numbers.

Shapes: N pictures, B per batch, K classes, R features.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from vitrine.checkpoints import Loaded, load
from vitrine.checkpoints.bundled import box_on
from vitrine.checkpoints.loading import class_names
from vitrine.data.decoding.picture_input import Picture
from vitrine.data.loading.workers import WorkerKind
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.in_memory import PictureList
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, TryVerb
from vitrine.evaluation.features import logits_and_features, representation
from vitrine.evaluation.outputs import Outputs, Precision, at_a_time, casting
from vitrine.evaluation.prediction_sets import prediction_sets
from vitrine.evaluation.streaming import Pace, open_loader, stream
from vitrine.evaluation.trust import Trust, read_trust
from vitrine.models import Model
from vitrine.models.dense.model import DenseModel
from vitrine.models.sizes import ImageSize
from vitrine.runtime.devices import choose_device
from vitrine.serving.answers import (
    APPLIES,
    TOP,
    Answer,
    Prediction,
    Rows,
    Wanted,
    interval_half_width,
    number_predictions,
)  # fmt: skip


class Predictor:
    """A loaded model with its preprocessing and its classes; safe to use from several threads."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        device: str = "auto",
        precision: Precision = "fp32",
        batch_size: int | None = None,
        workers: int = 2,
        worker_kind: WorkerKind = "threads",
        trust: Trust | None = None,
    ) -> None:
        self.loaded = loaded
        self.trust = read_trust(loaded.folder) if trust is None else trust
        self.device = choose_device(device)
        self.model: Model = loaded.model.to(self.device).eval()
        self.preprocess: Preprocess = loaded.preprocess
        self.precision: Precision = precision
        self.batch_size = batch_size or at_a_time(self.device, self.preprocess.size)
        self.workers, self.worker_kind = workers, worker_kind

    @classmethod
    def open(
        cls,
        model: str | Path | Loaded,
        *,
        device: str = "auto",
        precision: Precision = "fp32",
        image_size: ImageSize = None,
        batch_size: int | None = None,
        workers: int = 2,
        worker_kind: WorkerKind = "threads",
    ) -> Self:
        """Open any model that `vitrine.load` opens, or one that it opened; `batch_size` is the pictures per batch."""
        model = box_on(model, device=device) if isinstance(model, str) else model
        loaded = model if isinstance(model, Loaded) else load(model, image_size=image_size)
        return cls(
            loaded, device=device, precision=precision, batch_size=batch_size, workers=workers,
            worker_kind=worker_kind,
        )  # fmt: skip

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None if the model has no classification head."""
        return self.model.config.num_classes

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of the logits; `class 0` and so on if they are unknown."""
        return class_names(self.loaded)

    @property
    def number_name(self) -> str | None:
        """Name of the number that the model predicts; None for a model of classes."""
        number = self.loaded.record.number
        return None if number is None else str(number.get("name", "number"))

    @property
    def is_multi_label(self) -> bool:
        """Whether a picture may have several classes, so that probabilities need not sum to 1."""
        recipe = self.loaded.record.recipe or {}
        objective = recipe.get("objective")
        # Recipes of version 0.1 have the loss at the top.
        loss = objective.get("loss") if isinstance(objective, Mapping) else recipe.get("loss")
        return bool(loss == "sigmoid")

    def predict(
        self, images: Iterable[Picture], *, top: int = TOP, coverage: float | None = None
    ) -> list[Prediction]:
        """Return the `top` most likely classes of each picture, or an error if it cannot be read.

        With `coverage` each prediction has the set of classes that contains the true one with this probability.
        """
        self.require_head()
        source = PictureList(images)
        return [
            prediction
            for rows in self.stream(source, wanted="scores")
            for prediction in self.answers(rows, source, top=top, coverage=coverage)
        ]

    def logits(self, images: Iterable[Picture]) -> Outputs:
        """Return logits (N, K), and by index why pictures cannot be read (their rows are 0)."""
        self.require_head()
        return self._outputs(images, wanted="logits")

    def embed(self, images: Iterable[Picture]) -> Outputs:
        """Return features (N, R), the input of the head, and by index why pictures cannot be read."""
        return self._outputs(images, wanted="features")

    def stream(self, source: Source, *, wanted: Wanted, pace: Pace | None = None) -> Iterator[Rows]:
        """Process a source of any length with `batch_size` pictures in memory."""
        if len(source) == 0:
            return
        with open_loader(
            source, self.preprocess, batch_size=self.batch_size, num_workers=self.workers,
            worker_kind=self.worker_kind, device=self.device,
        ) as loader:  # fmt: skip
            for computed in stream(loader, lambda images: self.computed(images, wanted=wanted), pace=pace):
                values = self.finished(computed.values, wanted=wanted)
                values[list(computed.failures)] = 0
                yield Rows(start=computed.start, values=values, failures=dict(computed.failures))

    def pixels(self, image: Picture, *, name: str | None = None) -> Tensor:
        """Decode one picture to (C, height, width) uint8 for `batch`; raise a `DataError` if it cannot be read."""
        example = PictureList([image]).read(0)
        return self.preprocess.pixels(self.preprocess.decode(example.data, name=name or example.name))

    def batch(self, pixels: Tensor, *, wanted: Wanted = "logits", is_normalised: bool = False) -> Tensor:
        """Map stacked pixels (B, C, height, width), 0 to 255, to logits, features or scores (B, ...), on the CPU."""
        moved = pixels.to(self.device, non_blocking=True)
        computed = self.computed(moved, wanted=wanted, is_normalised=is_normalised)
        values = self.finished({name: one.float().cpu() for name, one in computed.items()}, wanted=wanted)
        return values.clone()  # tensors of inference mode cannot be modified outside it

    def computed(self, pixels: Tensor, *, wanted: Wanted, is_normalised: bool = False) -> dict[str, Tensor]:
        """Map pixels on the device to the model's outputs there: `logits`, `features` or, for scores, both."""
        has_features = wanted == "both" or (wanted == "scores" and self.trust.familiarity is not None)
        with torch.inference_mode(), casting(self.device, self.precision):
            images = pixels if is_normalised else self.preprocess.normalise(pixels)
            if wanted == "features":
                return {"features": representation(self.model, images)}
            if not has_features:
                return {"logits": self.model(images)}
            logits, features = logits_and_features(self.model, images)
            return {"logits": logits, "features": features}

    def finished(self, values: Mapping[str, Tensor], *, wanted: Wanted) -> Tensor:
        """Turn the model's outputs, on the CPU, into logits, features or scores."""
        if wanted == "features":
            return values["features"]
        return self.scores(values["logits"], values["features"]) if "features" in values else values["logits"]

    def scores(self, logits: Tensor, features: Tensor) -> Tensor:
        """Append the distance of features (B, R) to logits (B, K), if the model has statistics for it."""
        familiarity = self.trust.familiarity
        if familiarity is None:
            return logits
        return torch.cat([logits, familiarity.distance(features).float()[:, None]], dim=1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits (B, K) into probabilities, by sigmoid for multi-label models and softmax for others."""
        return logits.sigmoid() if self.is_multi_label else logits.softmax(dim=1)

    def best(self, logits: Tensor, *, top: int = TOP) -> list[tuple[Answer, ...]]:
        """Return the `top` most likely classes for each row of logits (B, K)."""
        if top < 1:
            raise ConfigError(f"must be at least 1, got {top}", option="top")
        values, numbers = self.probabilities(logits).topk(min(top, logits.shape[1]), dim=1)  # (B, top)
        classes = self.classes
        return [
            tuple(
                Answer(label=classes[number], number=number, probability=value)
                for number, value in zip(some_numbers, some_values, strict=True)
            )
            for some_numbers, some_values in zip(numbers.tolist(), values.tolist(), strict=True)
        ]

    def answers(
        self, rows: Rows, source: Source, *, top: int = TOP, coverage: float | None = None
    ) -> list[Prediction]:
        """Return the predictions for the pictures of `source` that `rows` of scores belong to."""
        names = [source.name(rows.start + row) for row in range(len(rows.values))]
        return [
            Prediction(name=name, error=rows.failures[row]) if row in rows.failures else prediction
            for row, (name, prediction) in enumerate(
                zip(names, self.predictions(rows.values, names, top=top, coverage=coverage), strict=True)
            )
        ]

    def predictions(
        self, scores: Tensor, names: Sequence[str], *, top: int = TOP, coverage: float | None = None
    ) -> list[Prediction]:
        """Turn scores (B, K or K + 1) into predictions: classes, familiarity and prediction sets."""
        logits = scores[:, : self.num_classes]
        if self.number_name is not None:
            return number_predictions(logits[:, 0], names, errors=self.trust.errors, coverage=coverage)
        answers = self.best(logits, top=top)
        applying = self.applying(logits)
        shares, flags = self.familiarity(scores)
        sets = [None] * len(scores) if coverage is None else self.prediction_sets(logits, coverage=coverage)
        return [
            Prediction(
                name=name, answers=answers[row], labels=applying[row], familiarity=shares[row],
                none_of_these=flags[row], prediction_set=sets[row],
            )
            for row, name in enumerate(names)
        ]  # fmt: skip

    def half_width(self, coverage: float) -> float | None:
        """Return half the width of the interval of a number; None if the errors of the model are unknown."""
        return interval_half_width(self.trust.errors, coverage)

    def familiarity(self, scores: Tensor) -> tuple[Sequence[float | None], Sequence[bool | None]]:
        """Return the familiarity of each picture from scores (B, K + 1), and whether it is none of the classes."""
        known = self.trust.familiarity
        if known is None or scores.shape[1] == self.num_classes:
            nothing = [None] * len(scores)
            return nothing, nothing
        distances = scores[:, -1]
        return known.shares(distances).tolist(), (distances > known.threshold).tolist()

    @property
    def false_alarms(self) -> float | None:
        """The expected share of pictures of the classes that are wrongly marked as none of them; None if unknown."""
        return None if self.trust.familiarity is None else self.trust.familiarity.false_alarms

    def prediction_sets(self, logits: Tensor, *, coverage: float) -> list[tuple[str, ...]]:
        """Return for each row of logits (B, K) the classes that contain the true one with this probability."""
        held_out = self.trust.held_out
        if held_out is None or self.is_multi_label:
            raise ConfigError(
                "needs a model that was fine-tuned with held-out images and one label per image",
                option="coverage",
            )
        assert self.num_classes is not None
        probabilities = self.probabilities(logits)
        inside = prediction_sets(probabilities, held_out.thresholds(coverage, num_classes=self.num_classes))
        order = probabilities.argsort(dim=1, descending=True, stable=True).tolist()
        return [
            tuple(self.classes[number] for number in numbers if inside[row, number])
            for row, numbers in enumerate(order)
        ]

    def applying(self, logits: Tensor) -> list[tuple[str, ...] | None]:
        """Return the labels that apply for each row of logits (B, K); None if a picture has one class."""
        if not self.is_multi_label:
            return [None] * len(logits)
        classes = self.classes
        return [
            tuple(classes[number] for number in row.nonzero()[:, 0].tolist())
            for row in logits.sigmoid() >= APPLIES
        ]

    def require_head(self) -> None:
        """Refuse a model without a classification head."""
        if self.num_classes is None:
            raise ConfigError(
                "the model has no classification head; use its features, or fine-tune it",
                advice=[TryVerb("embed", ("MODEL", "PICTURES"), "to compute features")],
            )
        if isinstance(self.model, DenseModel):
            raise ConfigError(
                f"the model answers with {self.model.config.answers}, not with classes of whole pictures",
                advice=[TryVerb("predict", ("MODEL", "PICTURES"), f"to write {self.model.config.answers}")],
            )

    def _outputs(self, images: Iterable[Picture], *, wanted: Wanted) -> Outputs:
        parts = list(self.stream(PictureList(images), wanted=wanted))
        rows = torch.cat([part.values for part in parts]) if parts else torch.zeros(0, 0)
        failures = {part.start + row: why for part in parts for row, why in part.failures.items()}
        return Outputs(rows=rows, failures=failures)
