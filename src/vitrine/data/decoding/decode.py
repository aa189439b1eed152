"""From an encoded image of any format to pixels: (H, W, C) uint8, upright.

EXIF rotation is applied, alpha is composited on white, 16-bit samples are scaled (not clipped), CMYK, palette and
grey images are converted, and an animation gives its first frame. simplejpeg decodes JPEG if it is installed,
Pillow everything else. Both use libjpeg-turbo: full-size pixels are equal within `DECODER_TOLERANCE`. The header is
read first, so that a bomb is refused before it is unpacked.
"""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vitrine.data.decoding.image_file import (
    JPEG_MAGIC,
    MAX_PIXELS,
    check_parts,
    check_size,
    open_image,
    quiet_pillow,
)
from vitrine.data.decoding.jpeg_header import JpegLayout, read_layout, scale_factor, upper_rows
from vitrine.data.decoding.pixels import Pixels, first_frame, upright
from vitrine.errors import DataError, ImageError
from vitrine.spelling import printable

try:
    import simplejpeg
except ImportError:  # the extra `fast`; Pillow decodes everything without it
    simplejpeg = None

# Largest difference of a sample between the two JPEG decoders (they may be built with different versions).
DECODER_TOLERANCE = 2
_MOST_SCRATCH_BYTES = 2**24
ORIENTATION_TAG = 0x0112


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """Facts from the header of an image: its upright size, and how it is stored."""

    height: int
    width: int
    format: str
    mode: str
    orientation: int = 1
    num_frames: int = 1
    has_alpha: bool = False
    bits: int = 8


def decode(
    data: bytes | Pixels,
    *,
    name: str = "image",
    channels: int = 3,
    min_size: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """Decode to (H, W, channels) uint8; an `ImageError` names the file and the reason.

    With `min_size` (height, width) a JPEG may come out smaller by 2, 4 or 8, but never below that size: its
    scaled inverse transform costs less than the full one. `vitrine.data.decoding.jpeg_header` explains decoding the
    upper rows only.
    """
    if isinstance(data, np.ndarray):
        return to_channels(_as_pixels(data, name), channels)
    if data[:3] == JPEG_MAGIC and simplejpeg is not None:
        pixels = _decode_jpeg(data, name=name, min_size=min_size, max_pixels=max_pixels)
        if pixels is not None:
            return to_channels(pixels, channels)
    with open_image(data, name=name, max_pixels=max_pixels) as image:
        return to_channels(_load(image, name=name, min_size=min_size), channels)


def decode_upper_rows(
    data: bytes,
    layout: JpegLayout,
    *,
    rows: int,
    name: str = "image",
    min_size: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """Decode at least the first `rows` rows of a JPEG whose layout `can_stop`; the rest may be missing.

    `min_size` refers to the whole image, as in `decode`. The result is grey (H, W, 1) or colour (H, W, 3), and may
    be in memory that the next call in the same thread overwrites: copy it to keep it.
    """
    check_size(layout.height, layout.width, name=name, max_pixels=max_pixels)
    factor = scale_factor(layout.height, layout.width, min_size=min_size)
    upper = upper_rows(data, layout, rows=rows)
    data, height = (upper[0], upper[1]) if upper else (data, layout.height)
    smaller = (height // factor, layout.width // factor) if factor > 1 else None
    if simplejpeg is not None:
        pixels = _decode_jpeg(
            data,
            name=name,
            min_size=smaller,
            max_pixels=max_pixels,
            is_strict=upper is None,
            scratch=_scratch(3 * height * layout.width),
        )
        if pixels is not None:
            return pixels
    with open_image(data, name=name, max_pixels=max_pixels) as image:
        return _load(image, name=name, min_size=smaller)


def pixels_of(picture: Image.Image, *, name: str = "image") -> Pixels:
    """Turn a Pillow image into (H, W, 1) or (H, W, 3) uint8, as `decode` does."""
    check_size(picture.height, picture.width, name=name)
    check_parts(picture, name=name)
    return _load(picture, name=name, min_size=None)


def read_facts(data: bytes | Pixels, *, name: str = "image", max_pixels: int = MAX_PIXELS) -> ImageFacts:
    """Read the header only: size, format, mode, orientation, frames."""
    if isinstance(data, np.ndarray):
        pixels = _as_pixels(data, name)
        mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(pixels.shape[2], f"{pixels.shape[2]} channels")
        return ImageFacts(height=pixels.shape[0], width=pixels.shape[1], format="array", mode=mode)
    with open_image(data, name=name, max_pixels=max_pixels) as image:
        orientation = _orientation(image)
        width, height = image.size
        if orientation >= 5:
            height, width = width, height
        return ImageFacts(
            height=height,
            width=width,
            format=image.format or "",
            mode=image.mode,
            orientation=orientation,
            num_frames=int(getattr(image, "n_frames", 1)),
            has_alpha=image.has_transparency_data,
            bits=16 if image.mode.startswith("I") else 32 if image.mode == "F" else 8,
        )


def to_channels(pixels: Pixels, channels: int) -> Pixels:
    """Turn (H, W, C) into (H, W, channels): grey is repeated, colour becomes grey by ITU-R 601 luma."""
    if pixels.shape[2] == channels:
        return pixels
    if pixels.shape[2] == 1:
        return np.repeat(pixels, channels, axis=2)
    if channels == 1 and pixels.shape[2] == 3:
        return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]
    raise DataError(f"an image of {pixels.shape[2]} channels cannot be converted to {channels}")


def _decode_jpeg(
    data: bytes,
    *,
    name: str,
    min_size: tuple[int, int] | None,
    max_pixels: int,
    is_strict: bool = True,
    scratch: Pixels | None = None,
) -> Pixels | None:
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None  # Pillow reads more kinds of JPEG, and explains what is wrong with the rest
    check_size(height, width, name=name, max_pixels=max_pixels)
    if space not in ("YCbCr", "RGB", "Gray"):
        return None  # CMYK in Adobe's variants: Pillow's conversion is the tested one
    orientation = read_layout(data).orientation
    options: dict[str, Any] = {"colorspace": "GRAY" if space == "Gray" else "RGB"}
    factor = scale_factor(height, width, min_size=min_size, orientation=orientation)
    if factor > 1:
        options |= {
            "min_height": -(-height // factor),
            "min_width": -(-width // factor),
            "min_factor": factor,
        }
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, strict=is_strict, buffer=scratch, **options)
    except ValueError as error:
        if "extraneous" in str(error):  # stray bytes between segments cost no pixel; Pillow skips them
            return None
        raise ImageError(
            f"{printable(name)} is a damaged JPEG: {str(error).strip().rstrip('.')}", kind="damaged"
        ) from error
    return upright(pixels, orientation)


_threads = threading.local()


def _scratch(size: int) -> Pixels | None:
    """Return memory of this thread for `size` bytes: new pages per image would cost 10 % of the decoding time."""
    if size > _MOST_SCRATCH_BYTES:
        return None
    memory: Pixels | None = getattr(_threads, "memory", None)
    if memory is None or len(memory) < size:
        memory = np.empty(max(size, 2**20), dtype=np.uint8)
        _threads.memory = memory
    return memory


def _load(image: Image.Image, *, name: str, min_size: tuple[int, int] | None) -> Pixels:
    """Load the first frame upright as (H, W, 1) or (H, W, 3)."""
    orientation = _orientation(image)
    if min_size is not None and image.format == "JPEG":
        width, height = image.size
        factor = scale_factor(height, width, min_size=min_size, orientation=orientation)
        if factor > 1:
            image.draft(None, (width // factor, height // factor))
    quiet_pillow()
    try:
        pixels = first_frame(image)
    except Exception as error:  # Pillow raises exceptions of any kind on damage, MemoryError included
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise ImageError(
            f"{printable(name)} is a damaged {image.format}: {reason}", kind="damaged"
        ) from error
    return upright(pixels, orientation)


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF raises exceptions of any kind; the picture itself may be fine
        return 1
    return value if value in range(1, 9) else 1


def _as_pixels(array: np.ndarray, name: str) -> Pixels:
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise DataError(
            f"{printable(name)} is an array of {array.dtype} with shape {array.shape}; "
            "pass uint8 of (H, W, C)"
        )
    return array[:, :, None] if array.ndim == 2 else array
