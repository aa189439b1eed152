"""A ViT on pictures at their own aspect ratios, all of a batch in one sequence without padding.

The pictures come as `vitrine.data.preparing.native` writes them: a row with the grid, then one row per patch and, up
to the longest picture, rows that are not read. Every picture has its own tokens and positions, so that its logits are
those that the model computes for it alone.

Shapes: B pictures of N_i patches, at most M; C channels, P x P pixels per patch; T tokens in all, D width, K classes.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from vitrine.errors import ConfigError
from vitrine.models.choices import NO_TABLE
from vitrine.models.config import ViTConfig
from vitrine.models.dropout import Dropout, in_segments
from vitrine.models.positions import Grid
from vitrine.models.rotary import RotaryPositions
from vitrine.models.segments import Segments, path_on


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
        (config.positions not in NO_TABLE, f"positions {config.positions!r}"),
        (config.position_placement == "stem" or config.positions == "none", "positions in every layer"),
        (config.attention == "global", f"{config.attention} attention"),
        (not config.attention_dropout, "attention_dropout"),
        (not config.activation_checkpointing, "activation_checkpointing"),
    ):
        if not holds:
            raise ConfigError(
                f"max_patches does not go with {what} of the model; leave one of them out",
                option="max_patches",
            )


def packed_attention(max_patches: int | None, config: object, device: torch.device | str) -> str | None:
    """Describe how attention inside pictures of any shape is computed on a device; None for pictures of one size."""
    if max_patches is None or not isinstance(config, ViTConfig):
        return None
    return str(path_on(str(device), head_width=config.width // config.num_heads))


# As torch.compiler.disable, which would import the compiler at every start (two seconds).
@_disable_dynamo
def classify_packed(vit: Packable, pictures: Tensor) -> Tensor:
    """Map pictures (B, 1 + M, C x P x P) to logits (B, K), or to representations without a head."""
    tokens, segments = encode_packed(vit, pictures)
    if vit.config.pooling == "class_token":  # only the first tokens of each picture are read
        return vit.classify(segments.first(tokens, vit.config.num_prefix_tokens))
    return in_order(segments, tokens, vit.classify)


@_disable_dynamo
def embed_packed(vit: Packable, pictures: Tensor) -> Tensor:
    """Map pictures (B, 1 + M, C x P x P) to the head's input (B, R)."""
    tokens, segments = encode_packed(vit, pictures)
    if vit.config.pooling == "class_token":
        return vit.represent(vit.pool(segments.first(tokens, 1)))
    return in_order(segments, tokens, lambda own: vit.represent(vit.pool(own)))


def in_order(segments: Segments, tokens: Tensor, read: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of tokens (n, T, D) to the pictures of each length together; return a row per picture."""
    numbers, rows = [], []
    for own, together in segments.of_one_length(tokens):
        numbers += own
        rows.append(read(together))
    order = torch.tensor(numbers, device=tokens.device).argsort()
    return torch.cat(rows)[order]


def encode_packed(vit: Packable, pictures: Tensor) -> tuple[Tensor, Segments]:
    """Return the encoded tokens of all pictures, one after the other (1, T, D), and the place of each picture."""
    grids = grids_of(vit, pictures)
    parts = embedded(vit, pictures, grids)
    segments = Segments(
        [len(part) for part in parts],
        device=pictures.device,
        rotation=None if vit.rotary is None else vit.rotary.of_pictures(grids),
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
