"""From what an opened image holds to upright uint8 pixels: palettes, alpha, CMYK, 16 bits, rotation."""

import numpy as np
from PIL import Image, ImageMode

from vitrine.data.source import Pixels

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
        layered = image.convert("RGBA")
        canvas = Image.new("RGBA", layered.size, (255, 255, 255, 255))
        return np.asarray(Image.alpha_composite(canvas, layered).convert("RGB"))
    if ImageMode.getmode(image.mode).basemode == "L" and image.mode != "P":
        return np.asarray(image.convert("L"))[:, :, None]
    return np.asarray(image.convert("RGB"))


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


def _scaled(samples: np.ndarray, *, is_float: bool) -> Pixels:
    """Scale 16-bit samples by 257 (65535 becomes 255); floats from 0..1, or from their own range."""
    values = samples.astype(np.float64)
    if is_float:
        low, high = (0.0, 1.0) if values.min() >= 0 and values.max() <= 1 else (values.min(), values.max())
        values = (values - low) / max(high - low, np.finfo(np.float64).tiny) * 255
    elif values.max() > 65_535 or values.min() < 0:  # true 32-bit samples have no agreed white
        low, high = values.min(), values.max()
        values = (values - low) / max(high - low, 1.0) * 255
    else:
        values = values / 257
    return np.rint(values).astype(np.uint8)[:, :, None]
