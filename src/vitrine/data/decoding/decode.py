"""From an encoded image of any format to pixels: (H, W, C) uint8, upright.

simplejpeg decodes JPEG if it is installed, Pillow everything else (`vitrine.data.decoding.image_file`). Both use
libjpeg-turbo: full-size pixels are equal within `DECODER_TOLERANCE`. The header is read first, so that a bomb is
refused before it is unpacked.

There are two ways to decode less of a JPEG; both are exact in what they keep. Scaled: the inverse transform turns a
block of 8x8 into 4x4, 2x2 or 1x1 pixels. Upper rows only: a baseline file with one scan stores its rows from top to
bottom, so a lower height in its header makes every decoder stop there; a crop that ends at 60 % of the height saves
40 % of the time.
"""

import struct
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vitrine.data.decoding.image_file import (
    JPEG_MAGIC,
    MAX_PIXELS,
    ORIENTATION_TAG,
    Pixels,
    as_pixels,
    check_size,
    first_frame,
    open_image,
    orientation_of,
    quiet_pillow,
)
from vitrine.errors import DataError, ImageError, MissingDataError
from vitrine.spelling import printable

try:
    import simplejpeg
except ImportError:  # the extra `fast`; Pillow decodes everything without it
    simplejpeg = None

# Largest difference of a sample between the two JPEG decoders (they may be built with different versions).
DECODER_TOLERANCE = 2
_MOST_SCRATCH_BYTES = 2**24
_EXIF, _SCAN, _FILL = 0xE1, 0xDA, 0xFF
_BASELINE = (0xC0, 0xC1)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_LONG = 4
# Smooth chroma upsampling reads one more row of chroma, at most four rows of pixels; doubled for safety. Rows are
# mostly stored in blocks of 16, so that the rest of the last block costs nothing.
_MARGIN_ROWS, _BLOCK_ROWS = 8, 16
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


@dataclass(frozen=True, slots=True)
class JpegLayout:
    """Position and contents of the frame header; `can_stop` if the rows are stored in order in one scan."""

    orientation: int = 1
    height: int = 0
    width: int = 0
    height_at: int = 0
    can_stop: bool = False
    components: int = 0


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
    scaled inverse transform costs less than the full one.
    """
    if isinstance(data, np.ndarray):
        return to_channels(as_pixels(data, name=name), channels)
    if data[:3] == JPEG_MAGIC and simplejpeg is not None:
        pixels = _decode_jpeg(data, name=name, min_size=min_size, max_pixels=max_pixels)
        if pixels is not None:
            return to_channels(pixels, channels)
    with open_image(data, name=name, max_pixels=max_pixels) as image:
        return to_channels(load_frame(image, name=name, min_size=min_size), channels)


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
    reduced_size = (height // factor, layout.width // factor) if factor > 1 else None
    if simplejpeg is not None:
        pixels = _decode_jpeg(
            data,
            name=name,
            min_size=reduced_size,
            max_pixels=max_pixels,
            is_strict=upper is None,
            scratch=_scratch(3 * height * layout.width),
        )
        if pixels is not None:
            return pixels
    with open_image(data, name=name, max_pixels=max_pixels) as image:
        return load_frame(image, name=name, min_size=reduced_size)


def read_file(path: str) -> bytes:
    """Read a whole file; the error names the file and the reason."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (the fastest way, called for every image)
            return file.read()
    except FileNotFoundError as error:
        raise MissingDataError(f"cannot read {printable(path)}: {error.strerror}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {printable(path)}: {reason}") from error


def to_channels(pixels: Pixels, channels: int) -> Pixels:
    """Turn (H, W, C) into (H, W, channels): grey is repeated, colour becomes grey by ITU-R 601 luma."""
    if pixels.shape[2] == channels:
        return pixels
    if pixels.shape[2] == 1:
        return np.repeat(pixels, channels, axis=2)
    if channels == 1 and pixels.shape[2] == 3:
        return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]
    raise DataError(f"an image of {pixels.shape[2]} channels cannot be converted to {channels}")


def read_layout(data: bytes) -> JpegLayout:
    """Read the header segments up to the first scan; an invalid header gives an empty layout."""
    orientation, height, width, height_at, components = 1, 0, 0, 0, 0
    is_baseline = False
    position, end = 2, len(data) - 10
    while position < end and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == _FILL:
            position += 1
            continue
        if marker == _SCAN:
            # One scan with all components and a proper end, so that a truncated file does not pass as complete.
            can_stop = is_baseline and data[position + 4] == components and data[-2:] == b"\xff\xd9"
            return JpegLayout(orientation, height, width, height_at, can_stop, components)
        if marker == _EXIF and data[position + 4 : position + 10] == b"Exif\0\0":
            orientation = _orientation_in_tiff(data, position + 10)
        elif marker in _FRAMES:
            is_baseline, height_at = marker in _BASELINE, position + 5
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            width = int.from_bytes(data[position + 7 : position + 9], "big")
            components = data[position + 9]
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return JpegLayout(orientation)


def upper_rows(data: bytes, layout: JpegLayout, *, rows: int) -> tuple[bytes, int] | None:
    """Lower the file's height so that it still contains `rows` unchanged; None if that saves nothing.

    Returns the file and its new height.
    """
    kept = -(-(rows + _MARGIN_ROWS) // _BLOCK_ROWS) * _BLOCK_ROWS
    if not layout.can_stop or layout.orientation != 1 or kept >= layout.height:
        return None
    at = layout.height_at
    return b"".join((data[:at], kept.to_bytes(2, "big"), data[at + 2 :])), kept


def scale_factor(height: int, width: int, *, min_size: tuple[int, int] | None, orientation: int = 1) -> int:
    """Return the largest of 8, 4, 2, 1 by which height x width may shrink and still cover `min_size` upright."""
    if min_size is None:
        return 1
    rows, columns = min_size if orientation < 5 else min_size[::-1]
    return next((f for f in (8, 4, 2) if height // f >= rows and width // f >= columns), 1)


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


def load_frame(image: Image.Image, *, name: str, min_size: tuple[int, int] | None) -> Pixels:
    """Load the first frame upright as (H, W, 1) or (H, W, 3)."""
    orientation = orientation_of(image)
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


def _orientation_in_tiff(data: bytes, base: int) -> int:
    order = {b"II": "<", b"MM": ">"}.get(data[base : base + 2])
    if order is None:
        return 1
    try:
        (offset,) = struct.unpack_from(order + "I", data, base + 4)
        (count,) = struct.unpack_from(order + "H", data, base + offset)
        for number in range(count):
            entry = base + offset + 2 + 12 * number
            tag, kind = struct.unpack_from(order + "HH", data, entry)
            if tag == ORIENTATION_TAG:
                # The standard says short; some cameras write long.
                (value,) = struct.unpack_from(order + ("I" if kind == _LONG else "H"), data, entry + 8)
                return value if value in range(1, 9) else 1
    except struct.error:  # damaged EXIF; the picture itself may be fine
        pass
    return 1
