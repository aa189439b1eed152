"""Open an image file by its header, within limits: the one place that calls `Image.open`. Nothing is decoded here.

Only the formats in `FORMATS` are opened, whatever a file is called: an EPS named .jpg must not start Ghostscript.
A file whose parts are larger than the image it declares (the tiles of a TIFF, the pictures inside an ICO, the AV1
frames of an AVIF) is refused before a decoder makes room for them.
"""

import io
import re
import struct
import warnings
from collections.abc import Iterator

from PIL import Image

from vitrine.data.decoding.av1_header import av1_frame_sizes
from vitrine.data.decoding.file_kind import (
    HEIC_ADVICE,
    frames_advice,
    is_heic_data,
    is_video_data,
    reads_heic,
    register_heic,
)
from vitrine.errors import ImageError, ImageSizeError
from vitrine.spelling import printable

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
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_TILE_WIDTH, _TILE_LENGTH = 322, 323
# A part of a file may be this large whatever the image is (33 MB of 16-bit RGBA), or this many times the image.
_PART_PIXELS, _PART_FACTOR = 2**22, 4
_PILLOW = re.compile(r"PIL(\.|$)")
_PILLOW_WARNS = ("ignore", None, Warning, _PILLOW, 0)


def open_image(data: bytes, *, name: str = "image", max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an encoded image without decoding it; an `ImageError` names the file and the reason."""
    if not data:
        raise ImageError(f"{printable(name)} is empty (0 bytes)", kind="empty file")
    quiet_pillow()
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        # Pillow allocates the whole canvas when it opens the file.
        check_size(*webp_size(data), name=name, max_pixels=max_pixels, may_be_unknown=True)
    is_heic = reads_heic() and is_heic_data(data)
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


def webp_size(data: bytes) -> tuple[int, int]:
    """Read height and width of a WebP's canvas from its first chunk; 0, 0 if they are missing."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[7:10], "little"), 1 + int.from_bytes(body[4:7], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    return int.from_bytes(body[8:10], "little") & 0x3FFF, int.from_bytes(body[6:8], "little") & 0x3FFF


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
        yield from _icon_sizes(data)
    elif image.format == "AVIF" and data is not None:
        yield from av1_frame_sizes(data)


def _icon_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the sizes that the pictures inside an ICO declare themselves; its directory may say otherwise."""
    (count,) = struct.unpack_from("<H", data, 4)
    for number in range(count):
        entry = data[6 + 16 * number : 22 + 16 * number]
        if len(entry) < 16:
            return
        (offset,) = struct.unpack_from("<I", entry, 12)
        head = data[offset : offset + 24]
        if len(head) < 24:
            continue
        if head.startswith(_PNG_MAGIC):
            width, height = struct.unpack_from(">II", head, 16)
        else:  # a bitmap without its file header; its height counts the mask, too
            width, height = (abs(side) for side in struct.unpack_from("<ii", head, 4))
        yield height, width


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
