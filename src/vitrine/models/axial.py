"""Axial attention (arXiv:2010.11929, appendix D.6): tokens attend along their row, in the next block along columns.

Shapes: B images, N = R x C patches in raster order, H heads of K channels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Axis:
    """The lines of a grid inside which tokens attend: its rows, or its columns."""

    rows: int
    columns: int
    is_column: bool

    def fold(self, heads: Tensor) -> Tensor:
        """Turn heads of all patches (B, H, N, K) into heads of lines, (B, H x lines, patches per line, K)."""
        B, H, N, K = heads.shape
        grid = heads.reshape(B, H, N // self.columns, self.columns, K)
        lines = grid.transpose(2, 3) if self.is_column else grid
        return lines.reshape(B, -1, lines.shape[3], K)

    def unfold(self, lines: Tensor, *, num_heads: int) -> Tensor:
        """Turn heads of lines back into heads of all patches in raster order, (B, H, N, K)."""
        B, _, length, K = lines.shape
        grid = lines.reshape(B, num_heads, -1, length, K)
        return (grid.transpose(2, 3) if self.is_column else grid).reshape(B, num_heads, -1, K)

    def mask(self, *, device: torch.device) -> Tensor:
        """Return what lines add to the logits of attention over all patches: 0 inside a line, else -inf, (N, N)."""
        place = torch.arange(self.rows * self.columns, device=device)
        line = place % self.columns if self.is_column else place // self.columns
        inside = line[:, None] == line[None, :]
        return torch.zeros(inside.shape, device=device).masked_fill(~inside, float("-inf"))


def axis_of(layer: int, grid: tuple[int, int]) -> Axis:
    """Return the lines of a layer: rows, in every other layer columns."""
    return Axis(*grid, is_column=layer % 2 == 1)
