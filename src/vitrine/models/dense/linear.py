"""A linear head on tokens, the usual evaluation of frozen features (as in DINOv2 and DINOv3).

Shapes: B images, T tokens, D width, K classes, GH x GW patches.
"""

import torch
from torch import Tensor, nn

from vitrine.models.config import checked_layer
from vitrine.models.dense.config import LinearSegmenterConfig
from vitrine.models.dense.model import DenseModel, as_map
from vitrine.models.dropout import Dropout

KERNEL_STD = 0.01


class ChannelDropout(Dropout):
    """In training, zero whole channels of maps (B, D, rows, columns)."""

    def forward(self, values: Tensor) -> Tensor:
        """Map (B, D, rows, columns) to the same shape."""
        ones = super().forward(values.new_ones(*values.shape[:2], 1, 1))
        return values * ones


class LinearDecoder(nn.Module):
    """Channel dropout, batch norm, and one linear layer per token."""

    def __init__(self, width: int, *, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = ChannelDropout(dropout)
        self.norm = nn.BatchNorm2d(width)
        self.classify = nn.Conv2d(width, num_classes, kernel_size=1)
        nn.init.normal_(self.classify.weight, std=KERNEL_STD)
        nn.init.zeros_(self.classify.bias)  # type: ignore[arg-type]

    def forward(self, maps: Tensor) -> Tensor:
        """Map tokens on their grid (B, D, GH, GW) to scores (B, K, GH, GW)."""
        return self.classify(self.norm(self.dropout(maps)))


class LinearSegmenter(DenseModel):
    """A ViT and a linear layer on the tokens of some blocks."""

    config: LinearSegmenterConfig
    decoder: LinearDecoder

    def __init__(self, config: LinearSegmenterConfig) -> None:
        super().__init__(config)
        width = len(config.layers) * config.vit.width
        self.decoder = LinearDecoder(width, num_classes=config.num_classes, dropout=config.dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to scores (B, K, GH, GW)."""
        return self.decoder(self.maps(images))

    def maps(self, images: Tensor) -> Tensor:
        """Return the normalised tokens of the blocks that are read, side by side: (B, layers x D, GH, GW)."""
        vit = self.vit
        wanted = [checked_layer(layer, vit.config.depth) for layer in self.config.layers]
        tokens: dict[int, Tensor] = {}
        for number, level in enumerate(vit.levels(images)):
            if number in wanted:
                assert level.grid is not None
                tokens[number] = as_map(vit.norm(level.values), level.grid, num_leading=level.num_prefix)
            if number == max(wanted):
                break
        return torch.cat([tokens[number] for number in wanted], dim=1)
