"""A model that answers: from paths, bytes, Pillow's images or arrays to classes, logits and features.

The pictures go the way of `vitrine evaluate`: the same decoder, the same `Preprocess` record, the same numbers.

Shapes: N pictures, B of them at a time, K classes, R features.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from vitrine.checkpoints import Loaded, load
from vitrine.data.decoding.picture_input import Picture
from vitrine.data.loading.loader import Loader
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.in_memory import PictureList
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.features import representation
from vitrine.evaluation.outputs import Outputs, Precision, at_a_time, casting
from vitrine.models import Model
from vitrine.runtime.devices import choose_device

Wanted = Literal["logits", "features"]
TOP = 5


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One class and how likely it is."""

    label: str
    number: int
    """Its place among the logits, from 0."""
    probability: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The most likely classes of one picture, the best first; or why there are none."""

    name: str
    answers: tuple[Answer, ...] = ()
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What the model gives for some pictures in a row: (B, K) or (B, R) float32, and why some have none.

    `start` is the number of the first picture; `failures` counts from there, and those rows are 0.
    """

    start: int
    values: Tensor
    failures: dict[int, str]


class Predictor:
    """A loaded model, its preprocessing and its classes, ready to answer from several threads at once."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        device: str = "auto",
        precision: Precision = "fp32",
        batch_size: int | None = None,
        workers: int = 2,
    ) -> None:
        self.loaded = loaded
        self.device = choose_device(device)
        self.model: Model = loaded.model.to(self.device).eval()
        self.preprocess: Preprocess = loaded.preprocess
        self.precision: Precision = precision
        self.batch_size = batch_size or at_a_time(self.device, self.preprocess.size)
        self.workers = workers

    @classmethod
    def open(
        cls,
        model: str | Path,
        *,
        device: str = "auto",
        precision: Precision = "fp32",
        image_size: int | tuple[int, int] | None = None,
        batch_size: int | None = None,
        workers: int = 2,
    ) -> "Predictor":
        """Open whatever `vitrine.load` opens; `batch_size` pictures are computed at a time."""
        loaded = load(model, image_size=image_size)
        return cls(loaded, device=device, precision=precision, batch_size=batch_size, workers=workers)

    @property
    def num_classes(self) -> int | None:
        """How many classes the model tells apart; None where it has no head."""
        return self.model.config.num_classes

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the order of the logits; `class 0` and so on where they are unknown."""
        if self.loaded.classes is not None:
            return self.loaded.classes
        return tuple(f"class {number}" for number in range(self.num_classes or 0))

    @property
    def is_multi_label(self) -> bool:
        """Whether each class was learned as a yes or no of its own, so that probabilities need not add up to 1."""
        recipe = self.loaded.record.recipe
        return recipe is not None and recipe.get("loss") == "sigmoid"

    def predict(self, images: Iterable[Picture], *, top: int = TOP) -> list[Prediction]:
        """Return the `top` most likely classes of each picture; one that cannot be read has an error instead."""
        self.require_head()
        source = PictureList(images)
        return [
            prediction
            for rows in self.stream(source, wanted="logits")
            for prediction in self.answers(rows, source, top=top)
        ]

    def logits(self, images: Iterable[Picture]) -> Outputs:
        """Return logits (N, K), and by number why some pictures cannot be read (their rows are 0)."""
        self.require_head()
        return self._outputs(images, wanted="logits")

    def embed(self, images: Iterable[Picture]) -> Outputs:
        """Return features (N, R), the input of the head, and by number why some pictures cannot be read."""
        return self._outputs(images, wanted="features")

    def stream(self, source: Source, *, wanted: Wanted) -> Iterator[Rows]:
        """Work through a source of any length, `batch_size` pictures in memory at a time."""
        if len(source) == 0:
            return
        # Threads cost more than they bring where there is nothing to do beside them.
        workers = self.workers if len(source) > 1 else 0
        with Loader(
            source,
            self.preprocess,
            batch_size=self.batch_size,
            num_workers=workers,
            device=self.device,
            keep_going=True,
        ) as loader:
            start = 0
            for batch in loader.evaluation_batches():
                values = self.batch(batch.images, wanted=wanted)
                values[list(batch.failures)] = 0
                yield Rows(start=start, values=values, failures=batch.failures)
                start += len(batch)

    def pixels(self, image: Picture, *, name: str | None = None) -> Tensor:
        """Decode one picture to (C, height, width) uint8 for `batch`; a `DataError` says why it cannot be."""
        example = PictureList([image]).read(0)
        return self.preprocess.pixels(self.preprocess.decode(example.data, name=name or example.name))

    def batch(self, pixels: Tensor, *, wanted: Wanted = "logits") -> Tensor:
        """Map stacked pixels (B, C, height, width), 0 to 255, to logits (B, K) or features (B, R), on the CPU."""
        with torch.inference_mode(), casting(self.device, self.precision):
            images = self.preprocess.normalise(pixels.to(self.device, non_blocking=True))
            values = self.model(images) if wanted == "logits" else representation(self.model, images)
            values = values.float().cpu()
        return values.clone()  # what inference mode makes cannot be changed by others

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits (B, K) into probabilities the way that the model was trained."""
        return logits.sigmoid() if self.is_multi_label else logits.softmax(dim=1)

    def best(self, logits: Tensor, *, top: int = TOP) -> list[tuple[Answer, ...]]:
        """Name the `top` most likely classes for each row of logits (B, K)."""
        if top < 1:
            raise ConfigError(f"top must be at least 1, got {top}")
        values, numbers = self.probabilities(logits).topk(min(top, logits.shape[1]), dim=1)  # (B, top)
        classes = self.classes
        return [
            tuple(
                Answer(label=classes[number], number=number, probability=value)
                for number, value in zip(some_numbers, some_values, strict=True)
            )
            for some_numbers, some_values in zip(numbers.tolist(), values.tolist(), strict=True)
        ]

    def answers(self, rows: Rows, source: Source, *, top: int = TOP) -> list[Prediction]:
        """Name the classes of the pictures of `source` that `rows` of logits are about."""
        return [
            Prediction(name=source.name(rows.start + row), error=rows.failures[row])
            if row in rows.failures
            else Prediction(name=source.name(rows.start + row), answers=answers)
            for row, answers in enumerate(self.best(rows.values, top=top))
        ]

    def require_head(self) -> None:
        """Refuse a model that cannot name classes."""
        if self.num_classes is None:
            raise ConfigError(
                "the model has no head, so it names no classes; use its features (vitrine embed), or fine-tune it"
            )

    def _outputs(self, images: Iterable[Picture], *, wanted: Wanted) -> Outputs:
        found = list(self.stream(PictureList(images), wanted=wanted))
        rows = torch.cat([part.values for part in found]) if found else torch.zeros(0, 0)
        failures = {part.start + row: why for part in found for row, why in part.failures.items()}
        return Outputs(rows=rows, failures=failures)
