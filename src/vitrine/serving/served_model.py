"""One served model: its name, its description, and the tasks that the batcher runs on it."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitrine.checkpoints.bundled import names_box
from vitrine.evaluation.reading_ahead import ReadPicture
from vitrine.exporting.runner import OnnxRunner
from vitrine.models import ViTConfig
from vitrine.models.dense.config import DenseConfig
from vitrine.models.dense.model import DenseModel
from vitrine.serving.answers import Wanted
from vitrine.serving.batching import Task
from vitrine.serving.explanation import explain, figures_of
from vitrine.serving.fewshot_classifier import representation_width
from vitrine.serving.location import locate, locate_request
from vitrine.serving.predictor import Predictor

# Maximum pictures per batch for masks or boxes.
MOST_LOCATED = 4

# Every opened model gets a number, which distinguishes a reloaded model from the earlier one.
VERSIONS = itertools.count()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExplainRequest:
    """A picture to explain, the layers, and whether to return whole attention matrices."""

    pixels: Tensor
    layers: tuple[int, ...]
    with_matrix: bool


class ServedModel:
    """A predictor with a name and its tasks; an ONNX `graph`, if given, computes in its place."""

    def __init__(
        self,
        name: str,
        predictor: Predictor,
        *,
        max_batch: int,
        graph: OnnxRunner | None = None,
        precision: str = "",
    ) -> None:
        self.max_batch, self.precision = max_batch, precision
        self.name, self.predictor, self.graph = name, predictor, graph
        self.version = next(VERSIONS)
        self.scores = Task(
            name="scores", run=lambda items: self.compute(items, wanted="scores"), max_batch=max_batch
        )
        self.features = Task(
            name="features", run=lambda items: self.compute(items, wanted="features"), max_batch=max_batch
        )
        # The same from the model's input, as prepared by a client.
        self.tensor_scores = Task(
            name="scores",
            run=lambda items: self.compute(items, wanted="scores", is_normalised=True),
            max_batch=max_batch,
        )
        self.tensor_features = Task(
            name="features",
            run=lambda items: self.compute(items, wanted="features", is_normalised=True),
            max_batch=max_batch,
        )
        self.location = Task(
            name="location", run=lambda items: locate(self.predictor, items), max_batch=MOST_LOCATED
        )
        # The attention maps of a picture take several times the memory of its forward pass, so one at a time.
        self.explanation = Task(name="explanation", run=self.explain, max_batch=1)
        self._figures: dict[str, Any] | None = None

    @property
    def backend(self) -> str:
        """The engine that computes the model, with its version and precision."""
        if self.graph is None:
            return f"torch, {self.predictor.precision}"
        return f"{self.graph.version}, {self.precision}" if self.precision else self.graph.version

    def computed_by(
        self, *, predictor: Predictor | None = None, graph: OnnxRunner | None = None, precision: str = ""
    ) -> "ServedModel":
        """Return the same model, computed by another predictor or a graph."""
        return ServedModel(
            self.name, predictor or self.predictor, max_batch=self.max_batch, graph=graph, precision=precision
        )

    @property
    def answers(self) -> str:
        """The kind of the model's answers: classes of pictures, masks, boxes, or masks of objects."""
        config = self.predictor.model.config
        return config.answers if isinstance(config, DenseConfig) else "classes"

    def located(self, data: bytes, *, max_pixels: int) -> ReadPicture:
        """Decode one upload for the task `location`."""
        return locate_request(
            data, self.predictor.preprocess, has_objects=self.answers != "masks", max_pixels=max_pixels
        )

    @property
    def has_attention(self) -> bool:
        """Whether the model has attention layers."""
        is_native = self.predictor.preprocess.max_patches is not None  # without an image to draw on
        return isinstance(self.predictor.model.config, ViTConfig) and not is_native

    @property
    def depth(self) -> int:
        """Number of attention layers."""
        config = self.predictor.model.config
        return config.depth if isinstance(config, ViTConfig) else 0

    @property
    def width(self) -> int:
        """Number of features."""
        return representation_width(self.predictor.model)

    def pixels(self, data: bytes, *, max_pixels: int) -> Tensor:
        """Decode one upload to the model's size: (C, height, width) uint8."""
        preprocess = self.predictor.preprocess
        return preprocess.pixels(preprocess.decode(data, name="the picture", max_pixels=max_pixels))

    def compute(
        self, items: Sequence[Tensor], *, wanted: Wanted, is_normalised: bool = False
    ) -> list[Tensor]:
        """Map pictures (C, height, width) to a row of scores or features each."""
        pixels = torch.stack(list(items))
        if self.graph is None:
            return list(self.predictor.batch(pixels, wanted=wanted, is_normalised=is_normalised))
        images = pixels if is_normalised else self.predictor.preprocess.normalise(pixels)
        outputs = self.graph(images.numpy())
        embedding = torch.from_numpy(outputs.embedding)
        if wanted == "features":
            return list(embedding)
        assert outputs.logits is not None  # /predict refuses a model without a head
        logits = torch.from_numpy(outputs.logits)
        return list(self.predictor.scores(logits, embedding) if wanted == "scores" else logits)

    def explain(self, requests: Sequence[ExplainRequest]) -> list[dict[str, Any]]:
        """Explain pictures one by one."""
        return [
            explain(self.predictor, each.pixels, layers=each.layers, with_matrix=each.with_matrix)
            for each in requests
        ]

    def figures(self) -> dict[str, Any]:
        """Return the figures that need no picture, computed once."""
        if self._figures is None:
            model = self.predictor.model
            vit = model.vit if isinstance(model, DenseModel) else model
            self._figures = figures_of(vit, image_size=self.predictor.preprocess.size)
        return self._figures

    def described(self) -> dict[str, Any]:
        """Return the model's entry in /models."""
        predictor, config = self.predictor, self.predictor.model.config
        size = predictor.preprocess.size
        attention = config if isinstance(config, ViTConfig) else None
        stride = attention.token_stride if attention else None
        return {
            "name": self.name,
            "title": "Bundled model" if names_box(self.name) else self.name,
            "answers": self.answers,
            "variant": predictor.loaded.record.variant,
            "backend": self.backend,
            "image_size": list(size),
            "rule": predictor.preprocess.rule,
            "crop_fraction": predictor.preprocess.crop_fraction,
            "classes": list(predictor.classes) if predictor.num_classes else None,
            "width": self.width,
            "parameters": sum(weight.numel() for weight in predictor.model.parameters()),
            "grid": [side // step for side, step in zip(size, stride, strict=True)] if stride else None,
            "patch": list(stride) if stride else None,
            "num_layers": attention.depth if attention else None,
            "num_heads": attention.num_heads if attention else None,
            "is_multi_label": predictor.is_multi_label,
            "number": predictor.number_name,
            "false_alarms": predictor.false_alarms,
            "notes": list(predictor.loaded.notes),
        }
