"""Similarity of the layers' representations: linear centred kernel alignment (CKA, arXiv:1905.00414).

Shapes: L layers and the embedding before them, M examples, D width.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import DataError
from vitrine.evaluation.outputs import evaluating
from vitrine.inspection.streaming import Images, num_pieces, pieces
from vitrine.models import Model, ViT
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
