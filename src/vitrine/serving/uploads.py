"""From a request's body to the bytes of one picture, in memory only.

A picture comes as the body itself (`Content-Type: image/...` or `application/octet-stream`) or as the one file of
a form (`multipart/form-data`). The form is parsed here rather than by the web framework, which would put a large
file on disk.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping

from PIL import Image

from vitrine.data.decoding.jpeg_header import read_layout
from vitrine.serving.admission import Entry
from vitrine.serving.limits import Limits
from vitrine.serving.refusals import TOO_LARGE, UNREADABLE, WRONG_KIND, RefusedError

REQUEST_TIMEOUT = 408
# A form is its picture, a boundary twice and a few lines.
FORM_BYTES = 16 * 1024
MOST_PARTS = 8
# Bytes of an upload that is too large that are still read, and thrown away: a client that is not heard out never
# reads why it was refused.
DRAINED_BYTES = 2**26
# A picture of a camera or a browser has about ten scans; each can cost as much as the whole picture.
MOST_SCANS = 64
KINDS = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
HOW = "send it as curl -F file=@photo.jpg or with its own type, Content-Type: image/jpeg"


async def read_upload(
    stream: AsyncIterator[bytes], headers: Mapping[str, str], *, limits: Limits, entry: Entry
) -> bytes:
    """Read one picture within the limits of size and time; refuse what is no picture."""
    kind, options = parse_header(headers.get("content-type", ""))
    is_form = kind == "multipart/form-data"
    if not (is_form or kind.startswith("image/") or kind in ("", "application/octet-stream")):
        raise RefusedError(WRONG_KIND, f"{kind!r} is not the type of a picture; {HOW}")
    if headers.get("content-encoding", "identity") != "identity":
        raise RefusedError(WRONG_KIND, f"content-encoding {headers['content-encoding']!r} is not read; {HOW}")
    most = limits.upload_bytes + (FORM_BYTES if is_form else 0)
    try:
        async with asyncio.timeout(limits.read_seconds):
            body = await _read(stream, headers, most=most, limits=limits, entry=entry)
    except TimeoutError:
        raise RefusedError(
            REQUEST_TIMEOUT, f"the upload did not arrive within {limits.read_seconds:g} seconds"
        ) from None
    if not body:
        raise RefusedError(UNREADABLE, f"the body is empty; {HOW}")
    data = file_of_form(body, boundary=options.get("boundary", "")) if is_form else body
    if len(data) > limits.upload_bytes:
        raise _too_large(limits)
    return data


async def _read(
    stream: AsyncIterator[bytes], headers: Mapping[str, str], *, most: int, limits: Limits, entry: Entry
) -> bytes:
    stated = headers.get("content-length", "")
    is_too_large = stated.isdecimal() and int(stated) > most
    parts: list[bytes] = []
    count = 0
    async for part in stream:
        count += len(part)
        is_too_large = is_too_large or count > most
        if not is_too_large:
            entry.hold(len(part))
            parts.append(part)
        elif count > DRAINED_BYTES:
            break
        else:
            parts.clear()
            entry.release()
    if is_too_large:
        raise _too_large(limits)
    return b"".join(parts)


def _too_large(limits: Limits) -> RefusedError:
    return RefusedError(
        TOO_LARGE,
        f"the upload is larger than the limit of {limits.upload_bytes} bytes; send a smaller picture",
    )


def parse_header(value: str) -> tuple[str, dict[str, str]]:
    """Split `kind; name=value; ...`; the kind in lower case."""
    kind, *rest = value.split(";")
    options = {}
    for option in rest:
        name, _, setting = option.partition("=")
        options[name.strip().lower()] = setting.strip().strip('"')
    return kind.strip().lower(), options


def file_of_form(body: bytes, *, boundary: str) -> bytes:
    """Return the one file of a form; other fields are passed over."""
    from python_multipart.exceptions import MultipartParseError
    from python_multipart.multipart import MultipartParser

    if not 0 < len(boundary) <= 70:  # RFC 2046, section 5.1.1
        raise RefusedError(UNREADABLE, "the form's Content-Type names no boundary of 1 to 70 characters")
    parts: list[tuple[dict[str, str], bytearray]] = []
    name = bytearray()
    value = bytearray()

    def begin() -> None:
        if len(parts) == MOST_PARTS:
            raise RefusedError(UNREADABLE, f"the form has more than {MOST_PARTS} parts; send one file")
        parts.append(({}, bytearray()))

    def end_header() -> None:
        parts[-1][0][name.decode("latin-1").lower()] = value.decode("latin-1")
        name.clear()
        value.clear()

    callbacks = {
        "on_part_begin": begin,
        "on_part_data": lambda data, start, end: parts[-1][1].extend(data[start:end]),
        "on_header_field": lambda data, start, end: name.extend(data[start:end]),
        "on_header_value": lambda data, start, end: value.extend(data[start:end]),
        "on_header_end": end_header,
    }
    try:
        parser = MultipartParser(boundary.encode("latin-1"), callbacks=callbacks)  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except (MultipartParseError, UnicodeEncodeError):
        raise RefusedError(UNREADABLE, f"the form cannot be read; {HOW}") from None
    files = [
        data for header, data in parts if "filename" in parse_header(header.get("content-disposition", ""))[1]
    ]
    if len(files) != 1:
        raise RefusedError(UNREADABLE, f"the form holds {len(files)} files; send one, {HOW}")
    if not files[0]:
        raise RefusedError(UNREADABLE, "the file in the form is empty (0 bytes); send a picture")
    return bytes(files[0])


def is_jpeg(data: bytes) -> bool:
    """Tell by its first bytes whether a picture can be decoded at a part of its size."""
    return data[:3] == b"\xff\xd8\xff"


def check_picture(data: bytes, *, max_pixels: int) -> None:
    """Refuse by its first bytes what is no picture, and what would cost more than its size suggests."""
    if is_jpeg(data):
        # A decoder refuses a second scan after one that holds all there is; then the bytes need not be searched.
        scans = 1 if read_layout(data).can_stop else data.count(b"\xff\xda")
        if scans > MOST_SCANS:
            raise RefusedError(
                UNREADABLE, f"the JPEG has {scans} scans, more than the {MOST_SCANS} that are read"
            )
        return
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        height, width = webp_size(data)
        if height * width > max_pixels:  # Pillow makes room for the whole canvas when it opens the file
            raise RefusedError(
                TOO_LARGE,
                f"the WebP says it is {height} x {width} pixels, more than the limit of {max_pixels} pixels",
            )
        return
    starts = (b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*")
    if data.startswith(starts) or (data[4:8] == b"ftyp" and data[8:12] in (b"avif", b"avis")):
        return
    raise RefusedError(WRONG_KIND, f"what was sent is not a picture that can be read; {KINDS} would do")


def num_pixels(data: bytes) -> int:
    """Read from its header how many pixels a picture has; 0 where that cannot be told."""
    if data[:4] == b"RIFF":
        height, width = webp_size(data)
        return height * width
    try:
        if is_jpeg(data):
            layout = read_layout(data)
            return layout.height * layout.width
        with Image.open(io.BytesIO(data)) as image:
            return image.height * image.width
    except Exception:  # whatever is wrong, the decoder says it in a sentence
        return 0


def webp_size(data: bytes) -> tuple[int, int]:
    """Read height and width of a WebP's canvas from its first chunk; 0, 0 where they are not there."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[7:10], "little"), 1 + int.from_bytes(body[4:7], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    return int.from_bytes(body[8:10], "little") & 0x3FFF, int.from_bytes(body[6:8], "little") & 0x3FFF
