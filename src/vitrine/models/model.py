"""The contract of every model, whatever its family: training, evaluation, inspection and export read it.

Shapes: B images of C channels, K classes, R width of the head's input.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.config import ModelConfig, checked_layer
from vitrine.models.timm_surface import TimmSurface


class Model(TimmSurface):
    """Map images (B, C, height, width) to logits (B, K), or to the representation if there is no head."""

    config: ModelConfig
    head: nn.Linear | None

    def initialise(self) -> None:
        """Initialise every parameter as the authors do; parameters on the meta device are skipped."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to logits (B, K)."""
        raise NotImplementedError

    def embed(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to the head's input (B, R); nothing else is kept."""
        raise NotImplementedError

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate by name: at least `representation` (B, R) and, with a head, `logits` last.

        Outputs of blocks are named `block_00`, `block_01` and so on, those of stages `stage_1`, `stage_2`...
        """
        raise NotImplementedError

    def attention(
        self, images: Tensor, *, layers: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (layer, weights (B, heads, queries, keys)) in order of depth, one layer in memory at a time.

        Each row sums to one. Keys may be fewer than queries (PVT reduces them), and a model may have more than one
        sequence per block: its docstring then says how layers are counted. No gradients. `layers` counts
        from 0; negative from the end. A model without attention raises an error.
        """
        raise NotImplementedError

    def last_map(self, images: Tensor) -> Tensor:
        """Return the feature map that the representation summarises, (B, width, rows, columns)."""
        raise NotImplementedError

    def require_image_shape(self, shape: torch.Size) -> None:
        """Refuse a shape that is not that of a batch of images with the model's channels."""
        if len(shape) != 4 or shape[1] != self.config.channels:
            raise ConfigError(
                f"images must be (batch, {self.config.channels}, height, width), got {tuple(shape)}"
            )

    def is_recomputing(self) -> bool:
        """Whether blocks are computed a second time in the backward pass instead of being kept."""
        return self.config.activation_checkpointing and self.training and torch.is_grad_enabled()


def wanted_layers(layers: Iterable[int] | None, *, depth: int) -> set[int]:
    """Return the layers to look at, counted from 0; None means all."""
    return set(range(depth)) if layers is None else {checked_layer(layer, depth) for layer in layers}
