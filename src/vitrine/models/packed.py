"""A ViT on pictures at their own aspect ratios, all of a batch in one sequence without padding.

The pictures come as `vitrine.data.preparing.native` writes them: a row with the grid, then one row per patch and, up
to the longest picture, rows that are not read. Every picture has its own tokens and positions, so that its logits are
those that the model computes for it alone.

Shapes: B pictures of N_i patches, at most M; C channels, P x P pixels per patch; T tokens in all, D width, K classes.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from vitrine.errors import ConfigError
from vitrine.models.config import ViTConfig
from vitrine.models.dropout import Dropout, in_segments
from vitrine.models.positions import Grid
from vitrine.models.rotary import RotaryPositions, Rotation
from vitrine.models.segments import Segments


class Packable(Protocol):
    """The parts of a ViT that packing uses."""

    config: ViTConfig
    patch_projection: nn.Conv2d
    rotary: RotaryPositions | None
    dropout: Dropout
    embedding_norm: nn.LayerNorm | nn.RMSNorm | nn.Identity
    blocks: nn.ModuleList
    norm: nn.LayerNorm | nn.RMSNorm

    def place(self, patches: Tensor, grid: Grid) -> Tensor:
        """Add tokens before the patches, and positions."""

    def classify(self, tokens: Tensor) -> Tensor:
        """Map encoded tokens to logits."""

    def pool(self, tokens: Tensor) -> Tensor:
        """Reduce encoded tokens to one vector per picture."""

    def represent(self, pooled: Tensor) -> Tensor:
        """Apply the layer between pooling and head."""


def require_packable(config: object) -> None:
    """Refuse a model that cannot take pictures of any shape in one sequence."""
    if not isinstance(config, ViTConfig):
        raise ConfigError(
            "max_patches needs a plain ViT; this model takes pictures of one size", option="max_patches"
        )
    for holds, what in (
        (config.stem is None, "a stem"),
        (config.positions not in ("relative", "relative_bias", "peg"), f"positions {config.positions!r}"),
        (config.position_placement == "stem" or config.positions == "none", "positions in every layer"),
        (config.attention == "global", f"{config.attention} attention"),
        (not config.attention_dropout, "attention_dropout"),
        (not config.activation_checkpointing, "activation_checkpointing"),
        (
            not (config.rotary_shift or config.rotary_jitter or config.rotary_rescale),
            "random rotary positions",
        ),
    ):
        if not holds:
            raise ConfigError(
                f"max_patches does not go with {what} of the model; leave one of them out",
                option="max_patches",
            )


# As torch.compiler.disable, which would import the compiler at every start (two seconds).
@_disable_dynamo
def classify_packed(vit: Packable, pictures: Tensor) -> Tensor:
    """Map pictures (B, 1 + M, C x P x P) to logits (B, K), or to representations without a head."""
    tokens, segments = encode_packed(vit, pictures)
    if vit.config.pooling == "class_token":  # only the first tokens of each picture are read
        return vit.classify(segments.first(tokens, vit.config.num_prefix_tokens))
    return torch.cat([vit.classify(own) for own in torch.split(tokens, segments.lengths, dim=1)])


@_disable_dynamo
def embed_packed(vit: Packable, pictures: Tensor) -> Tensor:
    """Map pictures (B, 1 + M, C x P x P) to the head's input (B, R)."""
    tokens, segments = encode_packed(vit, pictures)
    if vit.config.pooling == "class_token":
        return vit.represent(vit.pool(segments.first(tokens, 1)))
    return torch.cat([vit.represent(vit.pool(own)) for own in torch.split(tokens, segments.lengths, dim=1)])


def encode_packed(vit: Packable, pictures: Tensor) -> tuple[Tensor, Segments]:
    """Return the encoded tokens of all pictures, one after the other (1, T, D), and the place of each picture."""
    grids = grids_of(vit, pictures)
    parts = embedded(vit, pictures, grids)
    segments = Segments(
        [len(part) for part in parts], device=pictures.device, rotation=rotation_of(vit, grids)
    )
    with in_segments(segments.picture, count=len(parts)):
        tokens = vit.embedding_norm(vit.dropout(torch.cat(parts)[None]))
        for block in vit.blocks:
            tokens = block(tokens, segments)
    return tokens if vit.config.norm_after_pooling else vit.norm(tokens), segments


def grids_of(vit: Packable, pictures: Tensor) -> list[Grid]:
    """Read the grid of each picture from its first row."""
    require_packable(vit.config)
    size = vit.config.channels * vit.config.patch_size[0] * vit.config.patch_size[1]
    if pictures.shape[2] != size:
        raise ConfigError(
            f"pictures as patches must be (batch, 1 + patches, {size}) for this model, got {tuple(pictures.shape)}"
        )
    # A picture that could not be read is all zeros, and counts as one patch.
    return [(rows, columns) for rows, columns in pictures[:, 0, :2].long().clamp(min=1).tolist()]


def embedded(vit: Packable, pictures: Tensor, grids: list[Grid]) -> list[Tensor]:
    """Project all patches in one product, and give each picture its tokens and positions: B of (T_i, D)."""
    counts = [rows * columns for rows, columns in grids]
    pieces = torch.cat([own[1 : 1 + count] for own, count in zip(pictures, counts, strict=True)])
    kernel = vit.patch_projection.weight.flatten(1)
    patches = torch.split(F.linear(pieces, kernel, vit.patch_projection.bias), counts)
    parts: dict[int, Tensor] = {}
    for grid in dict.fromkeys(grids):  # pictures of one shape share the resampling of the positions
        numbers = [number for number, own in enumerate(grids) if own == grid]
        placed = vit.place(torch.stack([patches[number] for number in numbers]), grid)
        parts |= dict(zip(numbers, placed.unbind(), strict=True))
    return [parts[number] for number in range(len(grids))]


def rotation_of(vit: Packable, grids: list[Grid]) -> Rotation | None:
    """Return the rotation of every token of the sequence, if the model has rotary positions."""
    rotary: nn.Module | None = vit.rotary
    if rotary is None:
        return None
    turns: dict[Grid, Rotation] = {grid: rotary(grid, num_images=1) for grid in dict.fromkeys(grids)}
    cos = torch.cat([turns[grid].cos for grid in grids], dim=2)
    sin = torch.cat([turns[grid].sin for grid in grids], dim=2)
    return Rotation(cos, sin, turns[grids[0]].in_pairs)
