"""The base of every report: one set of templates, one look, and how a page is written.

Each page is a single HTML file with its pictures and charts inside. It follows the reader's light or dark theme, fits
a phone, and loads nothing from elsewhere.
"""

import base64
import io
from pathlib import Path
from typing import Any

import jinja2
from PIL import Image

from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.image_file import JPEG_MAGIC, Pixels
from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.runtime.files import write_atomically
from vitrine.version import __version__

THUMBNAIL_SIDE = 112
# A truncated JPEG is decoded whole to show what is left of it; larger ones would take too much memory.
MOST_TRUNCATED_PIXELS = 50_000_000


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vitrine.reports"),
        autoescape=True,  # file and class names come from outside
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda value: "-" if value is None else f"{100 * value:.1f}"
    return environment


_TEMPLATES = _environment()


def render(template: str, **values: Any) -> str:
    """Fill in a template of this room; a value that the template needs and does not get is an error."""
    return _TEMPLATES.get_template(template).render(version=__version__, **values)


def write_page(path: Path, text: str) -> Path:
    """Write a page in one step, so that a reader never opens half of it."""
    with write_atomically(path, mode="w") as file:
        file.write(text)
    return path


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
