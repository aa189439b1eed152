"""Single heads, layer by layer: the attention of the output or of any chosen patch, and its mean distance.

Shapes: B images, L layers, H heads, T tokens, of them N = GH x GW patches.
"""

from collections.abc import Iterable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.outputs import evaluating
from vitrine.inspection.rollout import from_output
from vitrine.inspection.streaming import (
    Images,
    concatenated,
    grid_of,
    num_pieces,
    on_grid,
    pieces,
    require_attention,
)
from vitrine.models import Model, ViT
from vitrine.runtime.progress import track


def attention_from(
    model: Model,
    images: Images,
    *,
    patch: tuple[int, int] | None = None,
    layers: Iterable[int] | None = None,
) -> NDArray[Any]:
    """Return each head's weights on the patches as seen from one query: (B, L, H, GH, GW).

    The query is the patch at (row, column), counted from 0 and negative from the end; by default the class token,
    or the mean over all patches if there is none. The weights on other tokens are dropped, so a map sums to at
    most one.
    """
    vit = require_attention(model)
    wanted = None if layers is None else list(layers)
    parts = []
    with evaluating(vit):
        for piece in track(pieces(vit, images), "Attention of heads", total=num_pieces(vit, images)):
            grid = grid_of(vit, piece)
            chosen = None if patch is None else vit.num_leading_tokens + patch_number(patch, grid)
            maps = [seen_from(vit, weights, chosen) for _, weights in vit.attention(piece, layers=wanted)]
            parts.append(on_grid(torch.stack(maps, dim=1), grid))
    return concatenated(parts)


def patch_number(patch: tuple[int, int], grid: tuple[int, int]) -> int:
    """Convert (row, column) to the patch's index in raster order; refuse a patch outside the grid."""
    if not all(-side <= place < side for place, side in zip(patch, grid, strict=True)):
        raise ConfigError(
            f"the grid has {grid[0]} rows and {grid[1]} columns of patches, got the patch {patch[0]},{patch[1]}; "
            f"rows go from 0 to {grid[0] - 1}, columns from 0 to {grid[1] - 1}"
        )
    return (patch[0] % grid[0]) * grid[1] + patch[1] % grid[1]


def seen_from(model: ViT, weights: Tensor, token: int | None) -> Tensor:
    """Select from (B, H, T, T) the attention of one token, or of the output, to the patches: (B, H, N)."""
    if token is None:
        return from_output(model, weights)
    # A copy: a slice would keep the whole layer's matrix in memory.
    return weights[:, :, token, model.num_leading_tokens :].clone()


def attention_distance(model: Model, images: Images) -> NDArray[Any]:
    """Return the mean distance in pixels between query and key, weighted by attention: (L, H) in float64.

    Class token, distillation token and registers are dropped on both sides and the rows of the patches are
    renormalised; then the mean over queries and images (Figure 7, right, and Figure 11).
    """
    vit = require_attention(model)
    first, count = vit.num_leading_tokens, 0
    total = torch.zeros(vit.config.depth, vit.config.num_branches * vit.config.num_heads, dtype=torch.float64)
    with evaluating(vit):
        tracked = track(pieces(vit, images), "Attention distance", total=num_pieces(vit, images))
        for piece in tracked:
            between = pixel_distances(grid_of(vit, piece), stride=vit.config.token_stride).to(piece)
            for layer, weights in vit.attention(piece):
                total[layer] += head_distances(weights, between, first=first).sum(dim=0)
            count += len(piece)
    if not count:
        raise DataError("no images given; pass at least one")
    return (total / count).numpy()


def head_distances(weights: Tensor, between: Tensor, *, first: int) -> Tensor:
    """Return the mean distance of each head for attention (B, H, T, T) whose patches start at `first`: (B, H)."""
    distances = []
    for head in range(weights.shape[1]):  # one head's products in memory at a time
        patches = weights[:, head, first:, first:]  # (B, N, N)
        far = (patches * between).sum(dim=-1) / patches.sum(dim=-1)
        distances.append(far.mean(dim=-1).double().cpu())
    return torch.stack(distances, dim=1)


def pixel_distances(grid: tuple[int, int], *, stride: tuple[int, int]) -> Tensor:
    """Return the distance in pixels between the centres of any two patches, (N, N) in float64."""
    rows, columns = torch.meshgrid(
        torch.arange(grid[0], dtype=torch.float64) * stride[0],
        torch.arange(grid[1], dtype=torch.float64) * stride[1],
        indexing="ij",
    )
    centres = torch.stack([rows.flatten(), columns.flatten()], dim=1)
    return (centres[:, None] - centres[None]).square().sum(dim=-1).sqrt()
