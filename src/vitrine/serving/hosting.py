"""One model in service: what it is called, what it is, and the tasks that the batcher runs on it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitrine.exporting.runner import OnnxRunner
from vitrine.models import ViTConfig
from vitrine.serving.batching import Task
from vitrine.serving.classifier import representation_width
from vitrine.serving.explaining import explain, figures_of
from vitrine.serving.predictor import Predictor, Wanted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """A picture to explain, and how closely."""

    pixels: Tensor
    layers: tuple[int, ...]
    with_matrix: bool


class Hosted:
    """A predictor under a name, with its tasks; `graph` computes in its place where it can."""

    def __init__(
        self, name: str, predictor: Predictor, *, most: int, graph: OnnxRunner | None = None
    ) -> None:
        self.name, self.predictor, self.graph = name, predictor, graph
        self.logits = Task(name="logits", run=lambda items: self.compute(items, wanted="logits"), most=most)
        self.features = Task(
            name="features", run=lambda items: self.compute(items, wanted="features"), most=most
        )
        # A picture's attention is several times its forward pass in memory, so one at a time.
        self.explanation = Task(name="explanation", run=self.explain, most=1)
        self._figures: dict[str, Any] | None = None

    @property
    def has_attention(self) -> bool:
        """Whether there is attention to look at."""
        return isinstance(self.predictor.model.config, ViTConfig)

    @property
    def depth(self) -> int:
        """Number of layers with attention."""
        config = self.predictor.model.config
        return config.depth if isinstance(config, ViTConfig) else 0

    def pixels(self, data: bytes, *, max_pixels: int) -> Tensor:
        """Decode one upload to the model's size: (C, height, width) uint8."""
        preprocess = self.predictor.preprocess
        return preprocess.pixels(preprocess.decode(data, name="the picture", max_pixels=max_pixels))

    def compute(self, items: Sequence[Tensor], *, wanted: Wanted) -> list[Tensor]:
        """Map pictures (C, height, width) to a row of logits or features each."""
        pixels = torch.stack(list(items))
        if self.graph is None:
            return list(self.predictor.batch(pixels, wanted=wanted))
        answers = self.graph(self.predictor.preprocess.normalise(pixels).numpy())
        rows = answers.embedding if wanted == "features" else answers.logits
        assert rows is not None  # /predict asks no model without a head
        return list(torch.from_numpy(rows))

    def explain(self, wishes: Sequence[Wish]) -> list[dict[str, Any]]:
        """Explain pictures one by one."""
        return [
            explain(self.predictor, wish.pixels, layers=wish.layers, with_matrix=wish.with_matrix)
            for wish in wishes
        ]

    def figures(self) -> dict[str, Any]:
        """Return what needs no picture, worked out once."""
        if self._figures is None:
            self._figures = figures_of(self.predictor.model, image_size=self.predictor.preprocess.size)
        return self._figures

    def described(self) -> dict[str, Any]:
        """Say what the model is."""
        predictor, config = self.predictor, self.predictor.model.config
        size = predictor.preprocess.size
        attention = config if isinstance(config, ViTConfig) else None
        stride = attention.token_stride if attention else None
        return {
            "name": self.name,
            "variant": predictor.loaded.record.variant,
            "backend": f"torch, {predictor.precision}" if self.graph is None else self.graph.version,
            "image_size": list(size),
            "rule": predictor.preprocess.rule,
            "crop_fraction": predictor.preprocess.crop_fraction,
            "classes": list(predictor.classes) if predictor.num_classes else None,
            "width": representation_width(predictor.model),
            "parameters": sum(weight.numel() for weight in predictor.model.parameters()),
            "grid": [side // step for side, step in zip(size, stride, strict=True)] if stride else None,
            "patch": list(stride) if stride else None,
            "num_layers": attention.depth if attention else None,
            "num_heads": attention.num_heads if attention else None,
            "is_multi_label": predictor.is_multi_label,
            "notes": list(predictor.loaded.notes),
        }
