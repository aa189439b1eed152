"""From an opened image of any mode to upright uint8 pixels: palettes, alpha, CMYK, 16 bits, rotation.

Large images are converted strip by strip: from RGBA to RGB on white, Pillow would hold five copies.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageMode

Pixels: TypeAlias = NDArray[np.uint8]
# Pixels per strip: a phone's photo has a few strips, an image of a data set one.
STRIP_PIXELS = 2**21
# How to undo an EXIF orientation on an (H, W, C) array: transpose, flip vertically, flip horizontally.
_TURNS = {
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


def first_frame(image: Image.Image) -> Pixels:
    """Load the first frame as (H, W, 1) or (H, W, 3); alpha is composited on white, 16 bits are scaled."""
    if image.mode.startswith("I") or image.mode == "F":
        return _scaled(np.asarray(image), is_float=image.mode == "F")
    if image.has_transparency_data:
        return _in_strips(image, _over_white)
    if ImageMode.getmode(image.mode).basemode == "L" and image.mode != "P":
        return _in_strips(image, lambda strip: np.asarray(strip.convert("L"))[:, :, None])
    return _in_strips(image, lambda strip: np.asarray(strip.convert("RGB")))


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Undo an EXIF orientation (1 to 8)."""
    if orientation not in _TURNS:
        return pixels
    is_transposed, is_flipped, is_mirrored = _TURNS[orientation]
    if is_transposed:
        pixels = pixels.transpose(1, 0, 2)
    if is_flipped:
        pixels = pixels[::-1]
    if is_mirrored:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _in_strips(image: Image.Image, convert: Callable[[Image.Image], Pixels]) -> Pixels:
    rows = max(1, STRIP_PIXELS // image.width)
    if rows >= image.height:
        return convert(image)
    pixels: Pixels | None = None
    for top in range(0, image.height, rows):
        strip = convert(image.crop((0, top, image.width, min(top + rows, image.height))))
        if pixels is None:
            pixels = np.empty((image.height, *strip.shape[1:]), dtype=np.uint8)
        pixels[top : top + rows] = strip
    assert pixels is not None
    return pixels


def _over_white(image: Image.Image) -> Pixels:
    layered = image.convert("RGBA")
    canvas = Image.new("RGBA", layered.size, (255, 255, 255, 255))
    return np.asarray(Image.alpha_composite(canvas, layered).convert("RGB"))


def _scaled(samples: np.ndarray, *, is_float: bool) -> Pixels:
    """Scale 16-bit samples by 257 (65535 becomes 255); floats from 0..1, or from their own range."""
    low, high = float(samples.min()), float(samples.max())
    if is_float and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif not is_float and low >= 0 and high <= 65_535:  # true 32-bit samples have no defined white
        low, high = 0.0, 65_535.0
    level = max(high - low, float(np.finfo(np.float64).tiny) if is_float else 1.0) / 255
    pixels = np.empty((*samples.shape, 1), dtype=np.uint8)
    rows = max(1, STRIP_PIXELS // samples.shape[1])
    for top in range(0, len(samples), rows):
        values = samples[top : top + rows].astype(np.float64)
        with np.errstate(all="ignore"):  # NaN becomes black
            pixels[top : top + rows, :, 0] = np.rint((values - low) / level)
    return pixels
