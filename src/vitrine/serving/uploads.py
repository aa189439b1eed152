"""From a request's body to the bytes of one picture, in memory only.

A picture is the body itself (`Content-Type: image/...` or `application/octet-stream`) or the one file of a form
(`multipart/form-data`). The form is parsed here rather than by the web framework, which would write a large file to
disk.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from vitrine.data.decoding.declared_sizes import webp_size
from vitrine.data.decoding.decode import read_layout
from vitrine.data.decoding.image_file import open_image
from vitrine.errors import MissingExtraError
from vitrine.serving.admission import TOO_LARGE, UNREADABLE, WRONG_KIND, Limits, RefusedError, Upload

try:
    from python_multipart.exceptions import MultipartParseError
    from python_multipart.multipart import MultipartParser
except ImportError:
    raise MissingExtraError("python-multipart", extra="serve", purpose="serving a model") from None

REQUEST_TIMEOUT = 408
# A form is its picture, a boundary twice and a few lines.
FORM_BYTES = 16 * 1024
MOST_PARTS = 8
# Bytes of a too large upload that are still read and dropped: most clients read the response after sending it all.
DRAINED_BYTES = 2**26
# A JPEG of a camera or a browser has about ten scans; each can cost as much as the whole picture.
MOST_SCANS = 64
KINDS = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
HINT = "send it with curl -F file=@photo.jpg, or as the body with Content-Type: image/jpeg"


async def read_upload(
    stream: AsyncIterator[bytes], headers: Mapping[str, str], *, limits: Limits, upload: Upload
) -> bytes:
    """Read one picture within the limits of size, time and speed; refuse anything else."""
    kind, options = parse_header(headers.get("content-type", ""))
    is_form = kind == "multipart/form-data"
    if not (is_form or kind.startswith("image/") or kind in ("", "application/octet-stream")):
        raise RefusedError(WRONG_KIND, f"{kind!r} is not a picture type; {HINT}")
    if headers.get("content-encoding", "identity") != "identity":
        raise RefusedError(
            WRONG_KIND, f"content-encoding {headers['content-encoding']!r} is not supported; {HINT}"
        )
    most = limits.upload_bytes + (FORM_BYTES if is_form else 0)
    body = await read_body(stream, headers, most=most, limits=limits, upload=upload)
    if not body:
        raise RefusedError(UNREADABLE, f"the body is empty; {HINT}")
    data = file_of_form(body, boundary=options.get("boundary", "")) if is_form else body
    if len(data) > limits.upload_bytes:
        raise _too_large(limits)
    return data


async def read_body(
    stream: AsyncIterator[bytes], headers: Mapping[str, str], *, most: int, limits: Limits, upload: Upload
) -> bytes:
    """Read a whole body of at most `most` bytes within the limits of time, speed and memory."""
    length = headers.get("content-length", "")
    is_too_large = length.isdecimal() and int(length) > most
    parts: list[bytes] = []
    count = 0
    begin = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(begin + _seconds_for(0, limits)) as deadline:
            async for part in stream:
                count += len(part)
                deadline.reschedule(begin + _seconds_for(count, limits))
                is_too_large = is_too_large or count > most
                if not is_too_large:
                    upload.hold(len(part))
                    parts.append(part)
                elif count > DRAINED_BYTES:
                    break
                else:
                    parts.clear()
                    upload.release()
    except TimeoutError:
        raise RefusedError(
            REQUEST_TIMEOUT,
            f"the upload is too slow: it must arrive within {limits.read_seconds:g} seconds, at least "
            f"{limits.bytes_per_second} bytes per second",
        ) from None
    if is_too_large:
        raise _too_large(limits)
    return b"".join(parts)


def _seconds_for(count: int, limits: Limits) -> float:
    """Return the deadline for more than `count` bytes, in seconds from the start of the upload."""
    return min(limits.read_seconds, limits.stall_seconds + count / limits.bytes_per_second)


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
    """Return the one file of a form; other fields are ignored."""
    if not 0 < len(boundary) <= 70:  # RFC 2046, section 5.1.1
        raise RefusedError(UNREADABLE, "the form's Content-Type has no boundary of 1 to 70 characters")
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
        raise RefusedError(UNREADABLE, f"the form cannot be read; {HINT}") from None
    files = [
        data for header, data in parts if "filename" in parse_header(header.get("content-disposition", ""))[1]
    ]
    if len(files) != 1:
        raise RefusedError(UNREADABLE, f"the form has {len(files)} files; send exactly one: {HINT}")
    if not files[0]:
        raise RefusedError(UNREADABLE, "the file in the form is empty (0 bytes); send a picture")
    return bytes(files[0])


def is_jpeg(data: bytes) -> bool:
    """Return whether the bytes are a JPEG, which can be decoded at a fraction of its size."""
    return data[:3] == b"\xff\xd8\xff"


def check_picture(data: bytes, *, max_pixels: int) -> None:
    """Refuse anything that is not a picture, by its first bytes, or that costs more than its size suggests."""
    if is_jpeg(data):
        # After one scan with all components a decoder refuses a second; then the bytes need not be searched.
        scans = 1 if read_layout(data).can_stop else data.count(b"\xff\xda")
        if scans > MOST_SCANS:
            raise RefusedError(UNREADABLE, f"the JPEG has {scans} scans; the limit is {MOST_SCANS}")
        return
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        height, width = webp_size(data)
        if height * width > max_pixels:  # Pillow allocates the whole canvas when it opens the file
            raise RefusedError(
                TOO_LARGE,
                f"the WebP has {height} x {width} pixels, more than the limit of {max_pixels} pixels",
            )
        return
    starts = (b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*")
    if data.startswith(starts) or (data[4:8] == b"ftyp" and data[8:12] in (b"avif", b"avis")):
        return
    raise RefusedError(WRONG_KIND, f"the upload is not a picture; send {KINDS}")


def num_pixels(data: bytes) -> int:
    """Read the number of pixels from a picture's header; 0 if the header cannot be read."""
    if data[:4] == b"RIFF":
        height, width = webp_size(data)
        return height * width
    try:
        if is_jpeg(data):
            layout = read_layout(data)
            return layout.height * layout.width
        with open_image(data) as image:
            return image.height * image.width
    except Exception:  # the decoder reports what is wrong
        return 0
