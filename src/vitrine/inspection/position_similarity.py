"""Similarity of the position embeddings, one tile per position (Figure 7, centre, and Figure 10).

Shapes: N = GH x GW patches, T tokens, L layers, D width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError
from vitrine.models import BiT, Model, ViT
from vitrine.models.families import family_of
from vitrine.models.positions import Grid


def position_similarity(model: Model, *, grid: Grid | None = None) -> NDArray[Any]:
    """Return the cosine similarities of each position, (N, GH, GW), or (L, N, GH, GW) with one table per layer.

    Absolute kinds: tile p holds the cosine of the embedding of patch p with that of every patch. Relative
    positions have no embedding per patch, only a key per offset: tile p holds at patch k the cosine of the key of
    the offset from k to p with the key of offset 0.
    """
    if isinstance(model, BiT):
        raise ConfigError("a BiT ResNet has no position embeddings; use a ViT or a hybrid")
    if not isinstance(model, ViT):
        kind = family_of(model.config).kind
        raise ConfigError(f"figures of positions need one grid for all layers, which a {kind} does not have")
    if model.config.positions in ("none", "peg"):
        raise ConfigError(
            f"the model was made with positions={model.config.positions!r}: it has no position embeddings to compare"
        )
    rows, columns = grid or model.config.grid_size
    with torch.no_grad():
        tiles = [_similarity(model, table, (rows, columns)) for table in model.positions]
    cosines = torch.stack(tiles).view(len(tiles), rows * columns, rows, columns).cpu().numpy()
    return cosines if model.config.position_placement == "every_layer" else cosines[0]


def _similarity(model: ViT, table: torch.nn.Module, grid: Grid) -> Tensor:
    """Return cosines (N, N) of one table, in float64."""
    N = grid[0] * grid[1]
    if model.config.positions != "relative":
        patches = F.normalize(table(grid)[0, -N:].double(), dim=-1)
        return patches @ patches.T
    T = N + model.num_leading_tokens
    keys = F.normalize(table(T).double(), dim=-1)  # (2 T - 1, D), offset 0 at T - 1
    by_offset = keys @ keys[T - 1]
    position = torch.arange(N, device=keys.device)
    return by_offset[position[:, None] - position[None, :] + T - 1]
