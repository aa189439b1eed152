"""Rotary positions on a grid (arXiv:2104.09864 in two dimensions), as DINOv3 and EVA-02 use them.

A pair of channels of a query or key is rotated by an angle that grows with the row or column of its patch, so that a
product of the two depends on the distance between them. Tokens before the patches are not rotated.

Shapes: N patches on a grid of GH x GW, P tokens before them, T = P + N, H heads of K channels, F = K / 4 frequencies.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrine.models.config import ViTConfig
from vitrine.models.dropout import RandomLayer
from vitrine.models.positions import Grid

BASES = {"dinov3": 100.0, "eva": 10_000.0}


class Rotation(NamedTuple):
    """Cosines and sines (1 or B, 1, T, K) by which attention rotates queries and keys."""

    cos: Tensor
    sin: Tensor
    in_pairs: bool
    """Whether neighbouring channels are rotated as a pair (EVA), or those half a head apart (DINOv3)."""

    def turned(self, values: Tensor) -> Tensor:
        """Rotate queries or keys (B, H, R, K) of the first R tokens."""
        R = values.shape[2]
        other = neighbours(values) if self.in_pairs else opposite(values)
        # In fp32 even if the model computes in bf16, whose 8 bits are too few for the larger angles.
        return (values * self.cos[:, :, :R] + other * self.sin[:, :, :R]).to(values.dtype)

    def after(self, count: int) -> "Rotation":
        """Return the same for sequences with `count` more tokens in front, which are not rotated."""
        ahead = self.cos.new_ones(len(self.cos), 1, count, self.cos.shape[-1])
        cos, sin = torch.cat([ahead, self.cos], dim=2), torch.cat([0 * ahead, self.sin], dim=2)
        return Rotation(cos, sin, self.in_pairs)


def opposite(values: Tensor) -> Tensor:
    """Return (-second half, first half) of the channels."""
    first, second = values.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def neighbours(values: Tensor) -> Tensor:
    """Return (-x1, x0, -x3, x2, ...) of the channels (x0, x1, x2, x3, ...)."""
    pairs = values.reshape(*values.shape[:-1], -1, 2)
    return torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)


class RotaryPositions(RandomLayer):
    """The rotation for any grid; in training DINOv3's coordinates move, stretch and scale at random, per image."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.kind, self.grid, self.stretched_to = config.rotary, config.grid_size, config.rotary_grid
        self.base = config.rotary_base or BASES[config.rotary]
        self.num_frequencies = config.width // config.num_heads // 4
        self.num_leading_tokens = config.num_prefix_tokens + config.num_registers
        self.shift, self.jitter, self.rescale = (
            config.rotary_shift, config.rotary_jitter, config.rotary_rescale,
        )  # fmt: skip
        self.fill()

    def fill(self) -> None:
        """Compute the cosines and sines of the model's own grid; no file of weights contains them."""
        self.table = nn.Buffer(torch.stack(self.at(coordinates(self.grid, self.kind))), persistent=False)

    def forward(self, grid: Grid, *, num_images: int) -> Rotation:
        """Return the rotation of every token of images on `grid`; in training, one per image."""
        device, in_pairs = self.table.device, self.kind == "eva"
        if self.training and (self.shift or self.jitter or self.rescale):
            moved = self.moved(
                coordinates(grid, self.kind).to(device), self.draw(num_images, 5, device=device)
            )
            return Rotation(*self.at(moved), in_pairs)
        if grid == self.grid:
            return Rotation(self.table[0], self.table[1], in_pairs)
        return Rotation(*self.at(coordinates(grid, self.kind).to(device), grid), in_pairs)

    def at(self, places: Tensor, grid: Grid | None = None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (B or 1, 1, T, K) at places (B or 1, N, 2) of patches, rows before columns."""
        j = torch.arange(self.num_frequencies, device=places.device, dtype=torch.float32)
        frequencies = self.base ** -(j / self.num_frequencies)
        if self.kind == "dinov3":
            frequencies = 2 * math.pi * frequencies
        elif self.stretched_to is not None:
            to = torch.tensor(self.stretched_to, device=places.device)
            places = places * (to / torch.tensor(grid or self.grid, device=places.device))
        angles = (places[..., None] * frequencies).flatten(2)  # (B, N, 2 F), those of the row first
        angles = angles.repeat_interleave(2, dim=-1) if self.kind == "eva" else angles.tile(2)
        leading = angles.new_zeros(len(angles), self.num_leading_tokens, angles.shape[-1])
        angles = torch.cat([leading, angles], dim=1)[:, None]  # an angle of 0: no rotation
        return angles.cos(), angles.sin()

    def of_pictures(self, grids: list[Grid]) -> Rotation:
        """Return the rotation of every token of a sequence of pictures, one after the other."""
        if self.training and (self.shift or self.jitter or self.rescale):
            drawn = self.draw(len(grids), 5, device=self.table.device)
            turns = [
                self.at(self.moved(coordinates(grid, self.kind).to(drawn.device), drawn[i : i + 1]))
                for i, grid in enumerate(grids)
            ]
        else:
            of_grid = {grid: self(grid, num_images=1) for grid in dict.fromkeys(grids)}
            turns = [(of_grid[grid].cos, of_grid[grid].sin) for grid in grids]
        cos, sin = (torch.cat(parts, dim=2) for parts in zip(*turns, strict=True))
        return Rotation(cos, sin, self.kind == "eva")

    def moved(self, places: Tensor, drawn: Tensor) -> Tensor:
        """Shift, jitter and rescale places (1, N, 2) by uniform numbers for each image (B, 5): (B, N, 2)."""
        shift, jitter, rescale = torch.split(2 * drawn - 1, [2, 2, 1], dim=1)
        places = places + (self.shift or 0.0) * shift[:, None]
        places = places * (math.log(self.jitter or 1.0) * jitter[:, None]).exp()
        return places * (math.log(self.rescale or 1.0) * rescale[:, None]).exp()


def coordinates(grid: Grid, kind: str) -> Tensor:
    """Return row and column of each patch (1, N, 2): centres from -1 to 1 (DINOv3), or counted from 0 (EVA)."""
    axes = [torch.arange(count, dtype=torch.float32) for count in grid]
    if kind == "dinov3":
        axes = [2 * (axis + 0.5) / count - 1 for axis, count in zip(axes, grid, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)[None]
