"""The operations of RandAugment (arXiv:1909.13719) on batches of tensors, equal to Pillow's of that name.

Images are (B, C, H, W) floats from 0 to 255. `level` is the magnitude over 10: 1 is the strongest change that
AutoAugment uses, more goes beyond. `signs` (B,) are -1 or 1 for operations with a direction.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

# Colour of pixels that a turn or a shift uncovers: grey, as in the reference implementation.
FILL = 128.0
_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601
# The largest change, at level 1: degrees, shear, share of the side, relative change, threshold.
_DEGREES, _SHEAR, _SHIFT, _CHANGE = 30.0, 0.3, 100 / 331, 0.9


def apply_operation(
    name: str,
    images: torch.Tensor,
    *,
    level: float,
    signs: torch.Tensor,
    places: torch.Tensor,
    factors: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply one operation to all images; `factors` (B,) set an enhancement directly (1 changes nothing)."""
    if name in ENHANCEMENTS:
        if factors is None:
            factors = 1 + _CHANGE * level * signs
        other = ENHANCEMENTS[name](images)
        strength = factors.view(-1, 1, 1, 1)
        return (other + strength * (images - other)).clamp(0, 255)
    return OPERATIONS[name](images, level, signs, places)


def affine(images: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Sample each image where its matrix (2, 3) sends the output's pixels, in pixels from the centre."""
    _, _, height, width = images.shape
    y = torch.arange(height, device=images.device, dtype=torch.float32) - (height - 1) / 2
    x = torch.arange(width, device=images.device, dtype=torch.float32) - (width - 1) / 2
    grid = torch.stack([x[None, :].expand(height, width), y[:, None].expand(height, width)], dim=-1)
    points = torch.einsum("hwk,bjk->bhwj", grid, matrices[:, :, :2]) + matrices[:, None, None, :, 2]
    # Created on the device: a tensor of Python numbers would have to be copied from the host.
    scale = torch.cat([x.new_full((1,), 2 / width), x.new_full((1,), 2 / height)])
    sampled = F.grid_sample(
        images - FILL, points * scale, mode="nearest", padding_mode="zeros", align_corners=False
    )
    return sampled + FILL


def identities(signs: torch.Tensor) -> torch.Tensor:
    """Return one identity matrix (2, 3) per image."""
    return torch.eye(2, 3, device=signs.device).repeat(len(signs), 1, 1)


def _rows(signs: torch.Tensor, *entries: torch.Tensor | float) -> torch.Tensor:
    """Put six entries, each a number or one number per image, into matrices (B, 2, 3)."""
    columns = [torch.zeros_like(signs) + entry for entry in entries]
    return torch.stack(columns, dim=1).view(-1, 2, 3)


def rotation(signs: torch.Tensor, level: float, size: Sequence[int]) -> torch.Tensor:
    """Turn counter-clockwise by up to 30 degrees."""
    angle = torch.deg2rad(_DEGREES * level * signs)
    cos, sin = angle.cos(), angle.sin()
    return _rows(signs, cos, -sin, 0, sin, cos, 0)


# How each geometric operation moves the output's pixels, at a level, on an image of (height, width).
GEOMETRY: dict[str, Callable[[torch.Tensor, float, Sequence[int]], torch.Tensor]] = {
    "rotate": rotation,
    "shear_x": lambda signs, level, size: _rows(signs, 1, _SHEAR * level * signs, 0, 0, 1, 0),
    "shear_y": lambda signs, level, size: _rows(signs, 1, 0, 0, _SHEAR * level * signs, 1, 0),
    "translate_x": lambda signs, level, size: _rows(signs, 1, 0, _SHIFT * level * signs * size[1], 0, 1, 0),
    "translate_y": lambda signs, level, size: _rows(signs, 1, 0, 0, 0, 1, _SHIFT * level * signs * size[0]),
}


def _moved(name: str) -> Callable[..., torch.Tensor]:
    def move(images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return affine(images, GEOMETRY[name](signs, level, images.shape[2:]))

    return move


def autocontrast(
    images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    """Stretch each channel to the whole range."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    stretched = (images - low) * (255 / (high - low).clamp(min=1e-6))
    return torch.where(high > low, stretched, images)


def equalise(images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Spread each channel's levels evenly, by Pillow's rule."""
    B, C = images.shape[:2]
    levels = images.round().long().clamp(0, 255).view(B * C, -1)
    histogram = torch.zeros(B * C, 256, device=images.device).scatter_add_(
        1, levels, torch.ones_like(levels, dtype=torch.float32)
    )
    # Pillow leaves the last occupied level out of the total and starts half a step in.
    last = (histogram > 0).float().mul(torch.arange(1, 257, device=images.device)).argmax(1, keepdim=True)
    step = ((histogram.sum(1, keepdim=True) - histogram.gather(1, last)) / 255).floor()
    before = histogram.cumsum(1) - histogram
    table = ((before + (step / 2).floor()) / step.clamp(min=1)).floor().clamp(0, 255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device, dtype=torch.float32))
    return table.gather(1, levels).view(images.shape)


def invert(images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Turn light into dark."""
    return 255 - images


def posterise(images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Keep the upper bits of each sample: all 8 at level 0, 4 at level 1."""
    step = 2.0 ** min(7, round(4 * level))
    return (images / step).floor() * step


def solarise(images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Invert what is lighter than a threshold: none at level 0, all at level 1."""
    threshold = 256 * (1 - min(1.0, level))
    return torch.where(images >= threshold, 255 - images, images)


def solarise_add(
    images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    """Lighten what is darker than the middle by up to 110."""
    return torch.where(images < 128, (images + 110 * level).clamp(max=255), images)


def cutout(images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Cover a square of up to 40/224 of each side either way with grey."""
    _, _, height, width = images.shape
    rows = (torch.arange(height, device=images.device) + 0.5) / height
    columns = (torch.arange(width, device=images.device) + 0.5) / width
    reach = 40 / 224 * level
    down = (rows[None] - places[:, :1]).abs() < reach  # (B, H)
    across = (columns[None] - places[:, 1:2]).abs() < reach
    return torch.where(down[:, None, :, None] & across[:, None, None, :], FILL, images)


def grey_of(images: torch.Tensor) -> torch.Tensor:
    """Luma of each pixel, (B, 1, H, W)."""
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    # Channel by channel: a tensor of the weights would have to be copied from the host.
    red, green, blue = (weight * images[:, channel] for channel, weight in enumerate(_LUMA))
    return (red + green + blue)[:, None]


def smooth(images: torch.Tensor) -> torch.Tensor:
    """Blur by Pillow's 3x3 kernel with 5 in the middle; the border stays as it is."""
    C = images.shape[1]
    kernel = torch.ones(3, 3, device=images.device)
    kernel[1, 1] = 5
    blurred = F.conv2d(images, (kernel / 13).expand(C, 1, 3, 3), groups=C)
    smoothed = images.clone()
    smoothed[:, :, 1:-1, 1:-1] = blurred
    return smoothed


# The image that each enhancement moves away from: factor 0 gives this, 1 the image itself.
ENHANCEMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "brightness": torch.zeros_like,
    "colour": lambda images: grey_of(images).expand_as(images),
    "contrast": lambda images: grey_of(images).mean(dim=(2, 3), keepdim=True).round().expand_as(images),
    "sharpness": smooth,
}


def _enhancement(name: str) -> Callable[..., torch.Tensor]:
    def enhance(
        images: torch.Tensor, level: float, signs: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        return apply_operation(name, images, level=level, signs=signs, places=places)

    return enhance


OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "autocontrast": autocontrast,
    "equalise": equalise,
    "invert": invert,
    "rotate": _moved("rotate"),
    "posterise": posterise,
    "solarise": solarise,
    "solarise_add": solarise_add,
    "shear_x": _moved("shear_x"),
    "shear_y": _moved("shear_y"),
    "translate_x": _moved("translate_x"),
    "translate_y": _moved("translate_y"),
    "cutout": cutout,
} | {name: _enhancement(name) for name in ENHANCEMENTS}
