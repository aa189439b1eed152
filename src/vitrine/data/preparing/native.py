"""Pictures at their own aspect ratio: as many patches as a budget allows, nothing cut off (NaFlex, arXiv:2502.14786).

A picture is written as uint8 (1, 1 + M, C x P x Q) for at most M patches of P x Q pixels: the first row holds the
grid, rows before columns, as two numbers of two bytes; then one row per patch in raster order, channels first, as
models cut them; the rest is zero and not read. Batches of such pictures have one shape.
"""

import math

import torch
from torch import Tensor

from vitrine.errors import ConfigError

BYTE = 256


def native_size(height: int, width: int, *, patch: tuple[int, int], max_patches: int) -> tuple[int, int]:
    """Return the size in whole patches that a picture is resized to: the largest with at most `max_patches`.

    The search is NaFlex's: a factor between 1e-6 and 100 on both sides, each then rounded up to whole patches.
    """

    def rounded(factor: float) -> tuple[int, int]:
        down, across = (
            max(1, math.ceil(side * factor / step)) for side, step in zip((height, width), patch, strict=True)
        )
        return down, across

    fits, exceeds = 1e-6, 100.0
    while exceeds - fits >= 1e-5:
        middle = (fits + exceeds) / 2
        if math.prod(rounded(middle)) <= max_patches:
            fits = middle
        else:
            exceeds = middle
    down, across = rounded(fits)
    return down * patch[0], across * patch[1]


def native_shape(patch: tuple[int, int], max_patches: int, *, channels: int) -> tuple[int, int]:
    """Return rows and columns of a picture that is written as patches."""
    if max_patches < 1:
        raise ConfigError(f"must be at least 1, got {max_patches}", option="max_patches")
    return 1 + max_patches, channels * math.prod(patch)


def written_as_patches(image: Tensor, *, patch: tuple[int, int], max_patches: int) -> Tensor:
    """Write an image (C, height, width) of whole patches as (1, 1 + M, C x P x Q), uint8."""
    channels, height, width = image.shape
    grid = height // patch[0], width // patch[1]
    rows, columns = native_shape(patch, max_patches, channels=channels)
    pieces = image.reshape(channels, grid[0], patch[0], grid[1], patch[1]).permute(1, 3, 0, 2, 4)
    out = torch.zeros(1, rows, columns, dtype=torch.uint8)
    out[0, 1 : 1 + math.prod(grid)] = pieces.reshape(math.prod(grid), columns)
    sides = torch.tensor([grid[0] % BYTE, grid[0] // BYTE, grid[1] % BYTE, grid[1] // BYTE])
    out[0, 0, : len(sides)] = sides.to(torch.uint8)
    return out


def normalised_patches(pictures: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalise pictures (..., 1, 1 + M, C x P x Q) with one mean and deviation (C,) per channel.

    The result (..., 1 + M, C x P x Q) has the grid as two numbers at the beginning of its first row.
    """
    rows = pictures.squeeze(-3).float()
    of_channel = rows.view(*rows.shape[:-1], len(mean), -1)
    values = ((of_channel - mean[:, None]) / std[:, None]).flatten(-2)
    header = rows[..., 0, :]
    values[..., 0, 0] = header[..., 0] + BYTE * header[..., 1]
    values[..., 0, 1] = header[..., 2] + BYTE * header[..., 3]
    return values
