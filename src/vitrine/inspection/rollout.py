"""Attention rollout (arXiv:2005.00928) from the output to the patches, as in Figures 6 and 14.

Shapes: B images, H heads, T tokens, of them N = GH x GW patches.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.outputs import evaluating
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


def rollout(model: Model, images: Images, *, discard: float = 0.0) -> NDArray[Any]:
    """Return the influence of each patch on the class token through all layers: (B, GH, GW).

    Without a class token it is the mean over the patches' own rows. The columns of class token, distillation token
    and registers are dropped and the rest is not renormalised. `discard` is a common variant: that fraction of each
    layer's weights, the smallest, counts as zero; the paper discards none.
    """
    vit = require_attention(model)
    if not 0 <= discard < 1:
        raise ConfigError(f"discard must be at least 0 and below 1, got {discard}")
    parts = []
    with evaluating(vit):
        for piece in track(pieces(vit, images), "Attention rollout", total=num_pieces(vit, images)):
            averages = (without_smallest(w.mean(dim=1), discard) for _, w in vit.attention(piece))
            flow = from_output(vit, roll_out(averages))  # (B, N)
            parts.append(on_grid(flow, grid_of(vit, piece)))
    return concatenated(parts)


def roll_out(averages: Iterable[Tensor]) -> Tensor:
    """Multiply attention (B, T, T), heads averaged, through the layers, first layer first: (B, T, T).

    Each layer is (A + I) with its rows normalised: half of a token comes from the residual branch.
    """
    flow: Tensor | None = None
    for average in averages:
        kept = average + torch.eye(average.shape[-1], device=average.device, dtype=average.dtype)
        kept = kept / kept.sum(dim=-1, keepdim=True)
        flow = kept if flow is None else kept @ flow
    if flow is None:
        raise DataError("no layers given; pass at least one attention matrix")
    return flow


def from_output(model: ViT, rows: Tensor) -> Tensor:
    """Select from (..., T, T) the output's weights on the patches: the class token's row, or the patches' mean."""
    first = model.num_leading_tokens
    patches = rows[..., first:]
    # A copy of the row: a view would keep the whole matrix in memory.
    return (
        patches[..., 0, :].clone() if model.config.reads_class_token else patches[..., first:, :].mean(dim=-2)
    )


def without_smallest(average: Tensor, share: float) -> Tensor:
    """Set the smallest `share` of each matrix (B, T, T) to zero."""
    flat = average.flatten(1)
    smallest = flat.argsort(dim=1)[:, : int(share * flat.shape[1])] if share else None
    return average if smallest is None else flat.scatter(1, smallest, 0).view_as(average)


def upsample(maps: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Enlarge maps (B, GH, GW) to an image's size (B, height, width), bilinear, patch centres in place."""
    grown = F.interpolate(torch.from_numpy(maps)[:, None].double(), size=size, mode="bilinear")
    return grown[:, 0].numpy()
