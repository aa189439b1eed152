"""Tokens as pictures: principal components as colour, and the norm map with registers and outliers.

Shapes: B images, GH x GW patches, D width, R registers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError
from vitrine.evaluation.outputs import evaluating
from vitrine.inspection.streaming import Images, concatenated, grid_of, on_grid, pieces
from vitrine.models import BiT, Model, ViT
from vitrine.models.config import checked_layer

# A normal's standard deviation is 1.4826 times its median absolute one; five of them exclude one in two million.
ROBUST_DEVIATION = 1.4826
OUTLIER_DEVIATIONS = 5
# Colours span the range between these percentiles, so that one outlier does not make the rest grey.
COLOUR_PERCENTILES = (1, 99)


@dataclass(frozen=True, kw_only=True)
class TokenNorms:
    """Norms of patches (B, GH, GW), of the class token (B, 0 or 1) and of registers (B, R), and the outliers."""

    patches: NDArray[Any]
    class_token: NDArray[Any]
    registers: NDArray[Any]
    limits: NDArray[Any]
    """Median plus five robust deviations of each image's patches, (B,)."""

    @property
    def outliers(self) -> NDArray[np.bool_]:
        """Patches whose norm exceeds their image's limit, (B, GH, GW)."""
        is_outlier: NDArray[np.bool_] = self.patches > self.limits[:, None, None]
        return is_outlier


def token_colours(model: Model, images: Images, *, layer: int | None = None) -> NDArray[Any]:
    """Return the three leading principal components of all images' patch tokens as colours (B, GH, GW, 3), 0 to 1.

    They are computed from the encoder's normalised output, or from block `layer`, for all images together, so equal
    colours mean equal components. In BiT they are computed from the last stage's feature map.
    """
    maps = feature_maps(model, images, layer=layer, is_normalised=True)
    flat = maps.reshape(-1, maps.shape[-1]).astype(np.float64)
    flat = flat - flat.mean(axis=0)
    # The (D, D) covariance instead of all tokens: its size does not grow with the number of patches.
    lengths, directions = np.linalg.eigh(flat.T @ flat)
    leading = directions[:, np.argsort(-lengths)[:3]]
    leading = leading * np.where(
        np.take_along_axis(leading, np.abs(leading).argmax(axis=0)[None], 0) < 0, -1, 1
    )
    components = flat @ leading
    low, high = np.percentile(components, COLOUR_PERCENTILES, axis=0)
    scaled = np.clip((components - low) / np.where(high > low, high - low, 1), 0, 1)
    return np.pad(scaled, [(0, 0), (0, 3 - scaled.shape[1])]).reshape(*maps.shape[:3], 3)


def token_norms(model: Model, images: Images, *, layer: int | None = None) -> TokenNorms:
    """Return the norms of the output tokens of block `layer`, by default the last, before the final norm."""
    patches, class_token, registers = [], [], []
    with evaluating(model), torch.no_grad():
        for piece in pieces(model, images):
            tokens, grid = outputs_of(model, piece, layer=layer, is_normalised=False)
            lengths = tokens.norm(dim=-1)  # (B, T)
            N = grid[0] * grid[1]
            patches.append(on_grid(lengths[:, -N:], grid))
            first = int(isinstance(model, ViT) and model.config.reads_class_token)
            num_registers = model.config.num_registers if isinstance(model, ViT) else 0
            class_token.append(lengths[:, :first])
            registers.append(lengths[:, lengths.shape[1] - N - num_registers : lengths.shape[1] - N])
    norms = concatenated(patches)
    median = np.median(norms, axis=(1, 2))
    spread = ROBUST_DEVIATION * np.median(np.abs(norms - median[:, None, None]), axis=(1, 2))
    return TokenNorms(
        patches=norms,
        class_token=concatenated(class_token),
        registers=concatenated(registers),
        limits=median + OUTLIER_DEVIATIONS * spread,
    )


def feature_maps(model: Model, images: Images, *, layer: int | None, is_normalised: bool) -> NDArray[Any]:
    """Return patch tokens on their grid, (B, GH, GW, D)."""
    parts = []
    with evaluating(model), torch.no_grad():
        for piece in pieces(model, images):
            tokens, grid = outputs_of(model, piece, layer=layer, is_normalised=is_normalised)
            parts.append(tokens[:, -grid[0] * grid[1] :].reshape(len(piece), *grid, -1))
    return concatenated(parts)


def outputs_of(
    model: Model, images: Tensor, *, layer: int | None, is_normalised: bool
) -> tuple[Tensor, tuple[int, int]]:
    """Return the tokens (B, T, D) after block `layer` (None: the last) and the grid of the patches among them."""
    if not isinstance(model, ViT):
        if layer is not None:
            raise ConfigError(f"only a ViT has blocks to choose from, got layer {layer}; leave it out")
        # (B, channels, rows, columns); of a ResNet before its last norm
        hidden = model.features(images)["stage_4"] if isinstance(model, BiT) else model.last_map(images)
        return hidden.flatten(2).transpose(1, 2), (hidden.shape[2], hidden.shape[3])
    last = checked_layer(-1 if layer is None else layer, model.config.depth)
    patches, grid = model.embed_patches(images)
    tokens = model.assemble(patches, grid)
    for number in range(last + 1):
        tokens = model.run_block(tokens, grid, layer=number)
    if is_normalised and layer is None and not model.config.norm_after_pooling:
        tokens = model.norm(tokens)
    return tokens, grid_of(model, images)
