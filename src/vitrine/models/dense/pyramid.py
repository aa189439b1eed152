"""ViTDet's simple feature pyramid (Li et al., arXiv:2203.16527): all levels from the last map of a plain ViT.

Shapes: B images, D width of the ViT, W width of the pyramid, GH x GW patches.
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.dense.model import ChannelNorm

NORM_EPS = 1e-6


class ConvNorm(nn.Module):
    """A convolution that keeps the size, and a norm of the channels."""

    def __init__(self, width: int, new_width: int, *, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, new_width, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = ChannelNorm(new_width, eps=NORM_EPS)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, D, rows, columns) to (B, W, rows, columns)."""
        return self.norm(self.conv(maps))


class Level(nn.Module):
    """One level: the map of patches at another number of cells per patch, then two convolutions."""

    def __init__(self, width: int, new_width: int, *, scale: float) -> None:
        super().__init__()
        self.num_halvings = max(round(-math.log2(scale)), 0)
        num_doublings = max(round(math.log2(scale)), 0)
        self.enlarge = nn.Sequential()
        for step in range(num_doublings):
            if step:
                self.enlarge.extend([ChannelNorm(width, eps=NORM_EPS), nn.GELU()])
            self.enlarge.append(nn.ConvTranspose2d(width, width // 2, kernel_size=2, stride=2))
            width //= 2
        self.reduce = ConvNorm(width, new_width, kernel_size=1)
        self.mix = ConvNorm(new_width, new_width, kernel_size=3)

    def forward(self, maps: Tensor) -> Tensor:
        """Map patches (B, D, GH, GW) to (B, W, rows, columns)."""
        maps = self.enlarge(maps)
        for _ in range(self.num_halvings):
            maps = F.max_pool2d(maps, kernel_size=2, ceil_mode=True)
        return self.mix(self.reduce(maps))


def level_grid(grid: tuple[int, int], scale: float) -> tuple[int, int]:
    """Return rows and columns of a level on a grid of patches."""
    return math.ceil(grid[0] * scale), math.ceil(grid[1] * scale)
