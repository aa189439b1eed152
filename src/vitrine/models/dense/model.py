"""The base of all dense models: the ViT, its tokens on their grid, and its named features.

Shapes: B images of C channels, T tokens, GH x GW patches, D width, K classes.
"""

from collections.abc import Iterable, Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.dense.config import DenseConfig
from vitrine.models.model import Model
from vitrine.models.timm_surface import Level
from vitrine.models.vit import ViT


class DenseModel(Model):
    """Map images (B, C, height, width) to scores of every pixel (B, K, rows, columns), coarser than the image."""

    config: DenseConfig

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.config = config
        self.vit = ViT(config.vit)
        self.head = None
        self.decoder = nn.Module()

    def initialise(self) -> None:
        """Fill every parameter: the ViT's as its authors do."""
        self.vit.initialise()

    def embed(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to the ViT's representation (B, D)."""
        return self.vit.embed(images)

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate of the ViT by name, and the `scores` (B, K, rows, columns) last."""
        return {**self.vit.features(images), "scores": self(images)}

    def attention(
        self, images: Tensor, *, layers: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the attention of the ViT's blocks."""
        return self.vit.attention(images, layers=layers)

    def last_map(self, images: Tensor) -> Tensor:
        """Return the encoded patches on their grid (B, D, GH, GW)."""
        return self.vit.last_map(images)

    def levels(self, images: Tensor) -> Iterator[Level]:
        """Yield the tokens (B, T, D) after each block of the ViT."""
        return self.vit.levels(images)

    @property
    def num_levels(self) -> int:
        """How many blocks the ViT has."""
        return self.vit.config.depth

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Refuse: classes of pixels are learned from masks."""
        raise ConfigError(
            f"a dense model gets other classes by fine-tuning it on {self.config.answers} of them"
        )


class ChannelNorm(nn.LayerNorm):
    """Normalise the channels of maps (B, D, rows, columns)."""

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, D, rows, columns) to the same shape."""
        return super().forward(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def as_map(tokens: Tensor, grid: tuple[int, int], *, num_leading: int) -> Tensor:
    """Return the patches of tokens (B, T, D) on their grid: (B, D, GH, GW)."""
    patches = tokens[:, num_leading:]
    return patches.transpose(1, 2).reshape(tokens.shape[0], -1, *grid)


def enlarged(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize scores (B, K, rows, columns) bilinearly to a size in pixels."""
    return F.interpolate(scores.float(), size=size, mode="bilinear", align_corners=False)
