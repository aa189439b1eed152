"""Resampling of uint8 images with antialias, the same for training, evaluation, export and serving.

torch's kernel, five times as fast as Pillow's and equal to it within one level in 255 (two in a few samples of
bicubic) if Pillow resizes along the rows first, as it did before version 13.

Memory stays bounded whatever the shape of an image: of a picture of 1 x 60,000 pixels that is to cover 256 x 256,
only the part that is kept is resized.
"""

import math

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from vitrine.data.decoding.decode import to_channels
from vitrine.data.decoding.pixels import Pixels

BY_TORCH = ("bilinear", "bicubic")
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# How far each filter reaches from its centre, in pixels of the coarser image.
SUPPORT = {"nearest": 1, "bilinear": 1, "bicubic": 2, "lanczos": 3}
# Largest difference of a sample from Pillow's, in levels of 255: Pillow's weights have more bits.
PILLOW_TOLERANCE = 2
# Pixels of a resized image, or of the half-resized one between both passes, up to which it is computed whole.
# 2**22 are 12 MB of RGB: at 256 pixels any shape up to 1 : 64 is within it.
WHOLE_PIXELS = 2**22


def planes(pixels: Pixels, channels: int) -> torch.Tensor:
    """See (H, W, C) as (channels, H, W), in the memory layout for which torch has its fast kernel."""
    pixels = to_channels(pixels, channels)
    if not pixels.flags.writeable:  # Pillow's arrays are read-only, which torch does not know
        pixels = pixels.copy()
    return torch.from_numpy(pixels).permute(2, 0, 1)


def resize(image: torch.Tensor, size: tuple[int, int], interpolation: str) -> torch.Tensor:
    """Resample a uint8 image (C, H, W) to (C, *size)."""
    _, height, width = image.shape
    if (height, width) == tuple(size):
        return image
    if interpolation not in BY_TORCH:
        return _resize_by_pillow(image, size, (0.0, 0.0, float(height), float(width)), interpolation)
    if height * size[1] > max(WHOLE_PIXELS, height * width):
        # torch resizes along the rows first: a tall narrow image would grow before it shrinks.
        image = F.interpolate(image[None], size=(size[0], width), mode=interpolation, antialias=True)[0]
    return F.interpolate(image[None], size=size, mode=interpolation, antialias=True)[0]


def resize_and_crop(
    image: torch.Tensor, size: tuple[int, int], box: tuple[int, int, int, int], interpolation: str
) -> torch.Tensor:
    """Return the box (top, left, height, width) of a uint8 image (C, H, W) resized to `size`: (C, height, width).

    Where the resized image would have more than `WHOLE_PIXELS`, only the box is computed. The result is then equal
    within `PILLOW_TOLERANCE` (`nearest` may choose the pixel beside), else exactly.
    """
    top, left, height, width = box
    rows, columns = size
    if rows * columns <= max(WHOLE_PIXELS, 2 * height * width):
        return resize(image, size, interpolation)[:, top : top + height, left : left + width]
    down, across = image.shape[1] / rows, image.shape[2] / columns
    first, last = top * down, min((top + height) * down, image.shape[1])
    # All rows that the filter reaches: nothing beyond them counts.
    reach = SUPPORT[interpolation] * max(down, 1) + 1
    start, stop = max(0, math.floor(first - reach)), min(image.shape[1], math.ceil(last + reach))
    band = image[:, start:stop]
    right = min((left + width) * across, image.shape[2])
    band = _resize_by_pillow(
        band, (stop - start, width), (0, left * across, stop - start, right), interpolation
    )
    return _resize_by_pillow(band, (height, width), (first - start, 0, last - start, width), interpolation)


def _resize_by_pillow(
    image: torch.Tensor, size: tuple[int, int], part: tuple[float, float, float, float], interpolation: str
) -> torch.Tensor:
    """Resample the part (top, left, bottom, right) of an image; pixels beyond its border count at its edge."""
    height, width = size
    top, left, bottom, right = part
    resized = [
        np.array(
            Image.fromarray(np.ascontiguousarray(plane)).resize(
                (width, height), FILTERS[interpolation], box=(left, top, right, bottom)
            )
        )
        for plane in image.numpy()
    ]
    return torch.from_numpy(np.stack(resized))


def resampling(start: torch.Tensor, extent: torch.Tensor, *, length: int, count: int) -> torch.Tensor:
    """Return the weights (..., count, length) that resize the part [start, start + extent) of a line of pixels.

    Bilinear with antialias, as Pillow and torch do it: a triangle as wide as the scale, nothing from outside.
    """
    step = (extent / count)[..., None, None]
    start, end = start[..., None, None], (start + extent)[..., None, None]
    centre = start + (torch.arange(count, device=start.device)[:, None] + 0.5) * step
    pixel = torch.arange(length, device=start.device)
    weights = (1 - (pixel + 0.5 - centre).abs() / step.clamp(min=1)).clamp(min=0)
    weights = torch.where((pixel >= start.floor()) & (pixel < end.ceil()), weights, 0)
    return weights / weights.sum(dim=-1, keepdim=True)
