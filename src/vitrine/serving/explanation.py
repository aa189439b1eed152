"""The attention of a model in one picture, and the figures of its positions and filters, as plain values.

Shapes: L layers, H heads, T tokens, of them N = GH x GW patches.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError
from vitrine.inspection.filters import filter_components
from vitrine.inspection.heads import head_distances, pixel_distances
from vitrine.inspection.rollout import from_output, roll_out
from vitrine.inspection.similarity import position_similarity
from vitrine.inspection.streaming import grid_of, on_grid, require_attention
from vitrine.models import Model, ViT
from vitrine.models.config import checked_layer
from vitrine.serving.admission import UNREADABLE, RefusedError
from vitrine.serving.predictor import Predictor

# Maximum bytes of all matrices in one response, before base64 turns three bytes into four.
MATRIX_BYTES = 2**25


def chosen_layers(text: str, depth: int) -> list[int]:
    """Parse `all`, `last` or layer numbers separated by commas; refuse a layer that the model does not have."""
    if text == "all":
        return list(range(depth))
    if text == "last":
        return [depth - 1]
    try:
        return sorted({checked_layer(int(number), depth) for number in text.split(",")})
    except (ConfigError, ValueError):
        raise RefusedError(
            UNREADABLE, f"layers must be all, last, or numbers from 0 to {depth - 1}, got {text!r}"
        ) from None


def explain(
    predictor: Predictor, pixels: Tensor, *, layers: Sequence[int], with_matrix: bool
) -> dict[str, Any]:
    """Return attention maps, rollout and attention distances for one picture (C, height, width) uint8."""
    vit = require_attention(predictor.model)
    images = predictor.preprocess.normalise(pixels[None].to(predictor.device))
    grid, first = grid_of(vit, images), vit.num_leading_tokens
    N, H = grid[0] * grid[1], vit.config.num_heads
    require_size(len(layers) * H * (N + 1) * N if with_matrix else 0)
    between = pixel_distances(grid, stride=vit.config.token_stride).to(images)
    distances: list[list[float]] = []
    wanted: list[dict[str, Any]] = []

    def head_means() -> Iterator[Tensor]:
        for layer, weights in vit.attention(images):  # (1, H, T, T), one layer in memory at a time
            distances.append(head_distances(weights, between, first=first)[0].tolist())
            if layer in layers:
                wanted.append(describe_layer(vit, weights, layer=layer, grid=grid, with_matrix=with_matrix))
            yield weights.mean(dim=1)

    flow = from_output(vit, roll_out(head_means()))
    return {
        "grid": list(grid),
        "num_layers": vit.config.depth,
        "num_heads": H,
        "seen_from": "class token" if vit.config.reads_class_token else "mean over patches",
        "rollout": rounded(on_grid(flow[0], grid)),
        "distance": [[round(value, 2) for value in row] for row in distances],
        "layers": wanted,
    }


def describe_layer(
    vit: ViT, weights: Tensor, *, layer: int, grid: tuple[int, int], with_matrix: bool
) -> dict[str, Any]:
    """Describe one layer's attention (1, H, T, T): from the output and, with the matrix, from every patch."""
    first = vit.num_leading_tokens
    seen = from_output(vit, weights)[0]  # (H, N)
    described: dict[str, Any] = {"layer": layer, "heads": rounded(on_grid(seen, grid)), "matrix": None}
    if with_matrix:
        rows = torch.cat([seen[:, None], weights[0, :, first:, first:]], dim=1)  # (H, N + 1, N)
        most = rows.amax(dim=-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        steps = (rows / most * 255).round().to(torch.uint8)
        described["matrix"] = {
            "shape": list(rows.shape),
            "maximum": rounded(most[..., 0]),
            "data": encoded(steps.cpu().numpy()),
        }
    return described


def require_size(count: int) -> None:
    """Refuse a response that would be too large."""
    if count > MATRIX_BYTES:
        raise RefusedError(
            UNREADABLE,
            f"the matrices of these layers take {count} bytes; the limit is {MATRIX_BYTES}, so request fewer layers",
        )


def figures_of(model: Model, *, image_size: tuple[int, int]) -> dict[str, Any]:
    """Return the figures that need no picture: similarity of positions, principal components of the filters."""
    filters = filter_components(model).pictures  # (K, P, Q, 3), 0 to 1
    figures: dict[str, Any] = {
        "filters": {"shape": list(filters.shape), "data": encoded((filters * 255).round().astype(np.uint8))},
        "positions": None,
        "missing": None,
    }
    try:
        rows, columns = image_size
        if isinstance(model, ViT):
            rows, columns = rows // model.config.token_stride[0], columns // model.config.token_stride[1]
        tiles = position_similarity(model, grid=(rows, columns))
        tiles = tiles if tiles.ndim == 3 else tiles[0]  # (N, GH, GW), of the first layer's table
        steps = ((np.clip(tiles, -1, 1) + 1) / 2 * 255).round().astype(np.uint8)
        figures["positions"] = {"shape": list(steps.shape), "data": encoded(steps)}
    except ConfigError as error:
        figures["missing"] = str(error)
    return figures


def encoded(array: NDArray[Any]) -> str:
    """Encode an array's bytes as base64."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def rounded(values: Tensor) -> Any:
    """Return nested lists with six significant digits, about the precision of float32."""
    return [_rounded(row) for row in values.double().cpu().tolist()]


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else [_rounded(item) for item in value]
