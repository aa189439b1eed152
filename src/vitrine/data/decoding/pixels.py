"""From what an opened image holds to upright uint8 pixels: palettes, alpha, CMYK, 16 bits, rotation.

Large images are converted strip by strip: on the way from RGBA to RGB over white Pillow would hold five of them.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageMode

Pixels: TypeAlias = NDArray[np.uint8]
# Pixels of one strip: a photograph of a phone is a few of them, one of a data set is one.
STRIP_PIXELS = 2**21
# How an EXIF orientation is undone on an (H, W, C) array: transposed first, then flipped up-down, left-right.
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
    """Load the first frame as (H, W, 1) or (H, W, 3); alpha is laid over white, 16 bits are scaled."""
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
    found: Pixels | None = None
    for top in range(0, image.height, rows):
        strip = convert(image.crop((0, top, image.width, min(top + rows, image.height))))
        if found is None:
            found = np.empty((image.height, *strip.shape[1:]), dtype=np.uint8)
        found[top : top + rows] = strip
    assert found is not None
    return found


def _over_white(image: Image.Image) -> Pixels:
    layered = image.convert("RGBA")
    canvas = Image.new("RGBA", layered.size, (255, 255, 255, 255))
    return np.asarray(Image.alpha_composite(canvas, layered).convert("RGB"))


def _scaled(samples: np.ndarray, *, is_float: bool) -> Pixels:
    """Scale 16-bit samples by 257 (65535 becomes 255); floats from 0..1, or from their own range."""
    low, high = float(samples.min()), float(samples.max())
    if is_float and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif not is_float and low >= 0 and high <= 65_535:  # true 32-bit samples have no agreed white
        low, high = 0.0, 65_535.0
    level = max(high - low, float(np.finfo(np.float64).tiny) if is_float else 1.0) / 255
    found = np.empty((*samples.shape, 1), dtype=np.uint8)
    rows = max(1, STRIP_PIXELS // samples.shape[1])
    for top in range(0, len(samples), rows):
        values = samples[top : top + rows].astype(np.float64)
        with np.errstate(all="ignore"):  # samples that are no numbers become black
            found[top : top + rows, :, 0] = np.rint((values - low) / level)
    return found
