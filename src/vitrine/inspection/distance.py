"""Mean attention distance by head and depth (Figure 7, right, and Figure 11).

Shapes: B images, H heads, L layers, T tokens, of them N = GH x GW patches.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import DataError
from vitrine.evaluation.outputs import evaluating
from vitrine.inspection.streaming import Images, grid_of, num_pieces, pieces, require_attention
from vitrine.models import Model
from vitrine.runtime.progress import track


def attention_distance(model: Model, images: Images) -> NDArray[Any]:
    """Return the mean distance in pixels between query and key, weighted by attention: (L, H) in float64.

    Class token, distillation token and registers are dropped on both sides and the rows of the patches are
    renormalised; then the mean over queries and images.
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
        raise DataError("no images were given to look at; give at least one")
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
