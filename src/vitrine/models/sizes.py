"""Sizes of images and patches: (height, width), and which of them fit."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class InputShape:
    """The input shape to use instead of the one that the model was built for; None keeps the model's own."""

    size: int | tuple[int, int] | None = None
    patch: int | None = None
    """Side of the patches in pixels; the patch embedding is resized as in FlexiViT."""
    max_patches: int | None = None
    """Keep the aspect ratio of pictures, with at most this many patches each."""

    def __post_init__(self) -> None:
        for name, value in (("patch", self.patch), ("max_patches", self.max_patches)):
            if value is not None and value < 1:
                raise ConfigError(f"must be at least 1, got {value}", option=name)
        if self.size is not None and self.max_patches is not None:
            raise ConfigError(
                f"size {self.size} is one size for all, max_patches keeps the aspect ratio; give one of them",
                option="max_patches",
            )


ImageSize = int | tuple[int, int] | InputShape | Mapping[str, Any] | None
"""A size in pixels, one number for squares; an `InputShape` or its fields; or None for the model's own."""


def as_shape(wanted: ImageSize) -> InputShape:
    """Return the requested input as an `InputShape`."""
    if isinstance(wanted, InputShape):
        return wanted
    return InputShape(**wanted) if isinstance(wanted, Mapping) else InputShape(size=wanted)


def shape_json(wanted: ImageSize) -> dict[str, Any] | None:
    """Return the requested input as plain values; None for the model's own."""
    values = dataclasses.asdict(as_shape(wanted))
    values["size"] = list(values["size"]) if isinstance(values["size"], tuple) else values["size"]
    return values if any(value is not None for value in values.values()) else None


def shape_from_json(values: Mapping[str, Any] | None) -> ImageSize:
    """Restore a shape from the plain values that `shape_json` returned."""
    if values is None:
        return None
    size = values["size"]
    return InputShape(**{**values, "size": tuple(size) if isinstance(size, list) else size})


def as_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """Expand one number to a square (height, width)."""
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def shown(size: tuple[int, ...]) -> str:
    """Format a size: 224, or 224x160 (height by width)."""
    return str(size[0]) if len(set(size)) == 1 else "x".join(map(str, size))


def require_tiling(image_size: tuple[int, int], stride: tuple[int, int]) -> None:
    """Refuse an image size that patches cannot tile; the error names the nearest sizes that fit."""
    if all(size >= step and size % step == 0 for size, step in zip(image_size, stride, strict=True)):
        return
    below = tuple(max(size // step, 1) * step for size, step in zip(image_size, stride, strict=True))
    above = tuple(
        size if size and size % step == 0 else (max(size, 0) // step + 1) * step
        for size, step in zip(image_size, stride, strict=True)
    )
    fits = shown(below) if below == above else f"{shown(below)} and {shown(above)}"
    raise ConfigError(
        f"image_size must be a multiple of the patch stride {shown(stride)}, got {shown(image_size)}; "
        f"nearest that fit: {fits}"
    )
