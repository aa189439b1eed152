"""Similarity of the layers' representations (linear CKA, arXiv:1905.00414), and of the position embeddings.

Shapes: L layers and the embedding before them, M examples, N = GH x GW patches, T tokens, D width.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.outputs import evaluating
from vitrine.inspection.streaming import Images, num_pieces, pieces
from vitrine.models import BiT, Model, ViT
from vitrine.models.families import family_of
from vitrine.models.positions import Grid
from vitrine.runtime.progress import track

TOKENS_AN_IMAGE = 8
# With two examples any two layers have CKA 1, and with few it is close to 1: fewer examples are meaningless.
LEAST_EXAMPLES = 8


def layer_similarity(model: Model, images: Images, *, tokens_each: int = TOKENS_AN_IMAGE) -> NDArray[Any]:
    """Return the CKA of any two layers, (L + 1, L + 1), the embedded patches first, from 0 to 1.

    The examples are patch tokens: `tokens_each` of every image, spread evenly over the grid, the same in all
    layers. In other families they are images: each stage averaged over its feature map, or each block over its
    patch tokens.
    """
    rows: list[list[Tensor]] = []
    with evaluating(model), torch.no_grad():
        for piece in track(pieces(model, images), "Similarity of layers", total=num_pieces(model, images)):
            layers = _token_rows(model, piece, tokens_each) if isinstance(model, ViT) else _maps(model, piece)
            rows.append(
                [layer.float().cpu() if layer.dtype.itemsize < 4 else layer.cpu() for layer in layers]
            )
    count = sum(len(piece[0]) for piece in rows)
    if count < LEAST_EXAMPLES:
        raise DataError(
            f"layers are compared over at least {LEAST_EXAMPLES} examples, got {count}; give more images"
        )
    return linear_cka([torch.cat(layer).numpy() for layer in zip(*rows, strict=True)])


def linear_cka(layers: list[NDArray[Any]]) -> NDArray[Any]:
    """Return |X'Y|^2 / (|X'X| |Y'Y|), Frobenius norms, of any two of (M, D) arrays, columns centred."""
    centred = [layer - layer.mean(axis=0) for layer in layers]
    count = len(layers)
    products = np.zeros((count, count))
    for i in range(count):
        for j in range(i, count):
            products[i, j] = products[j, i] = np.square(centred[i].T @ centred[j], dtype=np.float64).sum()
    own = np.sqrt(np.diag(products))
    return products / np.maximum(np.outer(own, own), np.finfo(np.float64).tiny)


def _token_rows(model: ViT, images: Tensor, tokens_each: int) -> list[Tensor]:
    patches, grid = model.embed_patches(images)
    N = grid[0] * grid[1]
    places = torch.linspace(0, N - 1, min(tokens_each, N), device=images.device).round().long()
    tokens = model.assemble(patches, grid)
    layers = [tokens[:, -N:][:, places].flatten(0, 1)]
    for layer in range(model.config.depth):
        tokens = model.run_block(tokens, grid, layer=layer)
        layers.append(tokens[:, -N:][:, places].flatten(0, 1))
    return layers


def _maps(model: Model, images: Tensor) -> list[Tensor]:
    features = model.features(images)
    maps = [features[name].mean(dim=(2, 3)) for name in features if name.startswith(("root", "stage"))]
    # A class token comes first.
    return maps or [
        features[name][:, 1:].mean(dim=1) for name in features if name.startswith(("embedded", "block"))
    ]


def position_similarity(model: Model, *, grid: Grid | None = None) -> NDArray[Any]:
    """Return the cosine similarities of each position, (N, GH, GW), or (L, N, GH, GW) with one table per layer.

    Absolute kinds: tile p holds the cosine of the embedding of patch p with that of every patch. Relative
    positions have no embedding per patch, only a key per offset: tile p holds at patch k the cosine of the key of
    the offset from k to p with the key of offset 0 (Figure 7, centre, and Figure 10).
    """
    if isinstance(model, BiT):
        raise ConfigError("a BiT ResNet has no position embeddings; use a ViT or a hybrid")
    if not isinstance(model, ViT):
        kind = family_of(model.config).kind
        raise ConfigError(f"figures of positions need one grid for all layers, which a {kind} does not have")
    if model.config.positions in ("none", "peg", "relative_bias"):
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
