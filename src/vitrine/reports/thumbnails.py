"""Small pictures inside a page, as data URLs."""

import base64
import io

from PIL import Image

from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.image_file import JPEG_MAGIC, Pixels
from vitrine.data.sources.source import Source
from vitrine.errors import DataError

THUMBNAIL_SIDE = 112
# A truncated JPEG is decoded whole to show what is left of it; larger ones are not worth the memory.
MOST_TRUNCATED_PIXELS = 50_000_000


def thumbnail(source: Source, index: int, *, side: int = THUMBNAIL_SIDE) -> str | None:
    """Return one image of a source, at most `side` pixels, as a data URL; None if nothing of it can be decoded."""
    try:
        data = source.read(index).data
    except DataError:
        return None
    try:
        return data_url(decode(data, min_size=(side, side)), side)
    except DataError:
        pixels = _truncated_jpeg(data)
        return None if pixels is None else data_url(pixels, side)


def data_url(pixels: Pixels, side: int) -> str:
    """Turn pixels (H, W, 1 or 3) into a data URL of a picture of at most `side` pixels."""
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    is_small = max(image.size) <= side
    if not is_small:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    # Icons and CIFAR images are shown pixel by pixel, so they are stored without loss.
    if is_small:
        image.save(buffer, "PNG", optimize=True)
    else:
        image.save(buffer, "JPEG", quality=82)
    kind = "png" if is_small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _truncated_jpeg(data: bytes | Pixels) -> Pixels | None:
    """Decode the part of a truncated JPEG that is there."""
    if not isinstance(data, bytes) or data[:3] != JPEG_MAGIC:
        return None
    try:
        import simplejpeg  # noqa: PLC0415 (an extra)

        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > MOST_TRUNCATED_PIXELS:
            return None
        pixels: Pixels = simplejpeg.decode_jpeg(data, strict=False)
    except (ImportError, ValueError):
        return None
    return pixels
