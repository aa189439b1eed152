"""Open an image file by its header, within limits, and load it with Pillow: the one place that calls `Image.open`.

Only the formats in `FORMATS` are opened, whatever a file is called: an EPS named .jpg must not start Ghostscript.
A file whose parts are larger than the image it declares (the tiles of a TIFF, the pictures inside an ICO, the AV1
frames of an AVIF) is refused before a decoder makes room for them.

Alpha is composited on white, 16-bit samples are scaled (not clipped), CMYK, palette and grey images are converted,
and an animation gives its first frame. Large images are converted strip by strip: from RGBA to RGB on white, Pillow
would hold five copies.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageMode

from vitrine.data.decoding.declared_sizes import av1_frame_sizes, icon_sizes, webp_size
from vitrine.data.decoding.file_kind import (
    HEIC_ADVICE,
    SIGNATURE_BYTES,
    frames_advice,
    is_heic_data,
    is_video_data,
    reads_heic,
    register_heic,
)
from vitrine.errors import DataError, ImageError, ImageSizeError
from vitrine.spelling import printable

Pixels: TypeAlias = NDArray[np.uint8]
# Pillow opens a multi-picture JPEG (MPO) as JPEG.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO", "TGA")
# Pixels per image at most: 178 million is where Pillow itself suspects a bomb (about 512 MiB of RGB).
MAX_PIXELS = 178_956_970
# Pixels per side at most.
MAX_SIDE = 65_535
JPEG_MAGIC = b"\xff\xd8\xff"
OTHER_KINDS = {
    b"%PDF": "a PDF",
    b"%!PS": "PostScript",
    b"\xc5\xd0\xd3\xc6": "PostScript",
    b"8BPS": "a Photoshop file",
    b"PK\x03\x04": "a ZIP archive",
}
ORIENTATION_TAG = 0x0112
_TILE_WIDTH, _TILE_LENGTH = 322, 323
# A part of a file may have this many pixels whatever the size of the image (33 MB of 16-bit RGBA), or this many times
# those of the image.
_PART_PIXELS, _PART_FACTOR = 2**22, 4
_PILLOW = re.compile(r"PIL(\.|$)")
_PILLOW_WARNS = ("ignore", None, Warning, _PILLOW, 0)
# Pixels per strip: a phone's photo has a few strips, an image of a data set one.
STRIP_PIXELS = 2**21


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


def open_image(data: bytes, *, name: str = "image", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an encoded image without decoding it; an `ImageError` names the file and the reason."""
    if not data:
        raise ImageError(f"{printable(name)} is empty (0 bytes)", kind="empty file")
    quiet_pillow()
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        # Pillow allocates the whole canvas when it opens the file.
        check_size(*webp_size(data), name=name, max_pixels=max_pixels, may_be_unknown=True)
    is_heic = reads_heic() and is_heic_data(data[:SIGNATURE_BYTES])
    if is_heic:
        register_heic()
    try:
        image = Image.open(io.BytesIO(data), formats=("HEIF",) if is_heic else FORMATS)
    except Image.DecompressionBombError as error:
        raise ImageSizeError(
            f"{printable(name)} is too large: {str(error).rstrip('.')}; scale it down or remove it"
        ) from error
    except Exception as error:  # Pillow's readers raise exceptions of any kind on damage
        if data[:3] == JPEG_MAGIC:
            raise ImageError(
                f"{printable(name)} is a damaged JPEG: its header cannot be read", kind="damaged"
            ) from error
        raise ImageError(
            f"{printable(name)} is not an image that can be read ({_looks_like(data, name)})",
            kind="not an image",
        ) from error
    check_size(image.height, image.width, name=name, max_pixels=max_pixels)
    check_parts(image, data, name=name, max_pixels=max_pixels)
    return image


def check_size(
    height: int, width: int, *, name: str, max_pixels: int = MAX_PIXELS, may_be_unknown: bool = False
) -> None:
    """Refuse an image that would not fit in memory, by the size that its header declares."""
    if height * width > max_pixels or max(height, width) > MAX_SIDE:
        raise ImageSizeError(
            f"{printable(name)} declares {height} x {width} pixels (height x width), more than the "
            f"limit of {max_pixels} pixels and {MAX_SIDE} per side; scale it down or remove it"
        )
    if (height < 1 or width < 1) and not may_be_unknown:
        raise ImageError(
            f"{printable(name)} declares {height} x {width} pixels; it contains no picture", kind="damaged"
        )


def check_parts(
    image: Image.Image, data: bytes | None = None, *, name: str, max_pixels: int = MAX_PIXELS
) -> None:
    """Refuse a file whose tiles, embedded pictures or frames are far larger than the image it declares."""
    most = min(max(_PART_PIXELS, _PART_FACTOR * image.height * image.width), max_pixels)
    for height, width in _part_sizes(image, data):
        if height * width > most:
            raise ImageSizeError(
                f"{printable(name)} declares {image.height} x {image.width} pixels (height x width) but contains "
                f"a part of {height} x {width}, which would need too much memory; save it again as PNG or JPEG"
            )


def quiet_pillow() -> None:
    """Keep Pillow from warning about single files: our own limit is stricter, and our errors explain the problem.

    The filter stays for good and covers Pillow alone: `catch_warnings` in several threads at once may leave all
    warnings of the process switched off.
    """
    if _PILLOW_WARNS not in warnings.filters:
        warnings.filterwarnings("ignore", module=_PILLOW.pattern)


def _part_sizes(image: Image.Image, data: bytes | None) -> Iterator[tuple[int, int]]:
    """Yield height and width of each part that a decoder allocates as a whole."""
    if image.format == "TIFF":
        tags = getattr(image, "tag_v2", {})
        height, width = tags.get(_TILE_LENGTH), tags.get(_TILE_WIDTH)
        if isinstance(height, int) and isinstance(width, int):
            yield height, width
    elif image.format == "ICO" and data is not None:
        yield from icon_sizes(data)
    elif image.format == "AVIF" and data is not None:
        yield from av1_frame_sizes(data)


def _looks_like(data: bytes, name: str) -> str:
    start = data[:512]
    if not start.strip(b"\0"):
        return "only zero bytes"
    if is_heic_data(start):
        return "damaged HEIC" if reads_heic() else f"HEIC, the format of iPhone photos; {HEIC_ADVICE}"
    if is_video_data(start):
        return f"a video; {frames_advice(name)}"
    for magic, kind in OTHER_KINDS.items():
        if start.startswith(magic):
            return kind
    return _text_kind(start)


def _text_kind(start: bytes) -> str:
    if start.lstrip()[:1] == b"<":
        return "it looks like HTML or XML"
    try:
        start[:-4].decode("utf-8")
    except UnicodeDecodeError:
        return "unknown format"
    return "it looks like text"


def read_facts(data: bytes | Pixels, *, name: str = "image", max_pixels: int = MAX_PIXELS) -> ImageFacts:
    """Read the header only: size, format, mode, orientation, frames."""
    if isinstance(data, np.ndarray):
        pixels = as_pixels(data, name=name)
        mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(pixels.shape[2], f"{pixels.shape[2]} channels")
        return ImageFacts(height=pixels.shape[0], width=pixels.shape[1], format="array", mode=mode)
    with open_image(data, name=name, max_pixels=max_pixels) as image:
        orientation = orientation_of(image)
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


def as_pixels(array: np.ndarray, *, name: str) -> Pixels:
    """See an array as pixels (H, W, C); one that is not uint8 of two or three sides is refused."""
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise DataError(
            f"{printable(name)} is an array of {array.dtype} with shape {array.shape}; "
            "pass uint8 of (H, W, C)"
        )
    return array[:, :, None] if array.ndim == 2 else array


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation (1 to 8) of an opened image."""
    try:
        value = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF raises exceptions of any kind; the picture itself may be fine
        return 1
    return value if value in range(1, 9) else 1


def first_frame(image: Image.Image) -> Pixels:
    """Load the first frame as (H, W, 1) or (H, W, 3); alpha is composited on white, 16 bits are scaled."""
    if image.mode.startswith("I") or image.mode == "F":
        return _scaled(np.asarray(image), is_float=image.mode == "F")
    if image.has_transparency_data:
        return _in_strips(image, _over_white)
    if ImageMode.getmode(image.mode).basemode == "L" and image.mode != "P":
        return _in_strips(image, lambda strip: np.asarray(strip.convert("L"))[:, :, None])
    return _in_strips(image, lambda strip: np.asarray(strip.convert("RGB")))


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
