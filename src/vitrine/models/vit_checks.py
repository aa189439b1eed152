"""Checks of a ViT's tokens and positions, beside those that every config runs."""

from typing import Any

from vitrine.errors import ConfigError
from vitrine.models.choices import IN_ATTENTION

ROTATED_PARTS = 4  # sine and cosine of row and column


POSITIONS_IN_PARTS = {"sincos_2d": 4, "learned_2d": 2}
"""Kinds of positions, and the number of equal parts into which each divides the width."""


def require_tokens(config: Any) -> None:
    """Refuse a pooling that reads a token that the model does not have."""
    if config.pooling == "class_token" and config.has_class_token is False:
        raise ConfigError(
            "pooling='class_token' needs a class token, got has_class_token=False; use 'average'"
        )
    if config.has_distillation_token and config.pooling != "class_token":
        raise ConfigError(f"a distillation token needs pooling='class_token', got {config.pooling!r}")


def require_positions(config: Any) -> None:
    """Refuse positions whose parts do not divide the width, and wrong places for conditional encodings."""
    for positions, step in POSITIONS_IN_PARTS.items():
        if config.positions == positions and config.width % step:
            raise ConfigError(
                f"{positions} positions need a width that is a multiple of {step}, got {config.width}"
            )
    if config.positions_keep_aspect:
        if config.positions not in ("learned_1d", "factorised"):
            raise ConfigError(
                f"positions_keep_aspect needs positions learned_1d or factorised, got {config.positions!r}",
                option="positions_keep_aspect",
            )
        if config.grid_size[0] != config.grid_size[1]:
            raise ConfigError(
                "a model whose positions keep the aspect ratio is built for squares, got a grid of "
                f"{config.grid_size[0]}x{config.grid_size[1]}; its pictures may have any shape (max_patches)",
                option="image_size",
            )
    require_peg_layers(config)


def require_peg_layers(config: Any) -> None:
    """Refuse position encoding generators that no block would read, or that are not in ascending order."""
    if config.positions != "peg":
        return
    layers, last = config.peg_layers, config.depth - 2
    if list(layers) != sorted(set(layers)) or not layers or not -1 <= layers[0] <= layers[-1] <= last:
        raise ConfigError(
            f"peg_layers must be blocks from -1 to {last} in ascending order, got {layers}",
            option="peg_layers",
        )
    if config.position_placement != "stem":
        raise ConfigError(
            "peg_layers places position encoding generators; position_placement must be 'stem', got "
            f"{config.position_placement!r}",
            option="position_placement",
        )


def require_rotary(config: Any) -> None:
    """Refuse rotary positions that do not divide the heads' width, or options that belong to another kind."""
    augmenting = ("rotary_shift", "rotary_jitter", "rotary_rescale")
    of_kind = {"dinov3": augmenting, "eva": ("rotary_grid",), "none": ()}[config.rotary]
    for name in (*augmenting, "rotary_grid", "rotary_base"):
        is_known = name in of_kind or (name == "rotary_base" and config.rotary != "none")
        if getattr(config, name) is not None and not is_known:
            raise ConfigError(f"{name} is not an option of rotary={config.rotary!r}", option=name)
    if config.rotary == "none":
        return
    head = config.width // config.num_heads
    if head % ROTATED_PARTS:
        raise ConfigError(
            f"rotary positions need heads whose width is a multiple of {ROTATED_PARTS}, got {head}",
            option="rotary",
        )
    if config.positions in IN_ATTENTION:
        raise ConfigError(
            f"rotary positions cannot be combined with positions={config.positions!r}", option="rotary"
        )
    for name, least in (("rotary_shift", 0), ("rotary_jitter", 1), ("rotary_rescale", 1), ("rotary_base", 1)):
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}", option=name)
    if config.rotary_grid is not None and (len(config.rotary_grid) != 2 or min(config.rotary_grid) < 1):
        raise ConfigError(
            f"rotary_grid must be rows and columns, got {config.rotary_grid}", option="rotary_grid"
        )


def require_axial(config: Any) -> None:
    """Refuse axial attention where there are tokens outside the grid, or where a block has no counterpart."""
    if config.attention != "axial":
        return
    if config.num_prefix_tokens + config.num_registers:
        raise ConfigError(
            "axial attention has no place for class, distillation or register tokens, which lie in no row or column; "
            "use pooling='average' and none of them",
            option="attention",
        )
    if config.depth % 2:
        raise ConfigError(
            f"axial attention needs an even depth, a block for rows and one for columns, got {config.depth}",
            option="depth",
        )
    if config.positions in IN_ATTENTION or config.rotary != "none":
        raise ConfigError(
            "axial attention cannot be combined with relative or rotary positions; use learned or fixed ones",
            option="positions",
        )
