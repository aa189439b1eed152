"""Sizes of images and patches: (height, width), and which of them fit."""

from vitrine.errors import ConfigError


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
