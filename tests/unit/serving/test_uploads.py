import asyncio
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import photo
from servers import encoded, jpeg

from vitrine.data.decoding.declared_sizes import webp_size
from vitrine.serving.admission import Admission, Limits, RefusedError
from vitrine.serving.uploads import (
    MOST_SCANS,
    check_picture,
    file_of_form,
    num_pixels,
    parse_header,
    read_upload,
)


def form(*parts, boundary="b"):
    """Build a form of (header, body) parts."""
    found = b"".join(
        b"--" + boundary.encode() + b"\r\n" + head + b"\r\n\r\n" + body + b"\r\n" for head, body in parts
    )
    return found + b"--" + boundary.encode() + b"--\r\n"


FILE = b'Content-Disposition: form-data; name="file"; filename="a.jpg"\r\nContent-Type: image/jpeg'


def read(parts, headers, **options):
    limits = Limits(**options)
    admission = Admission(limits, expected_wait=lambda: 0.0)

    async def stream():
        for part in parts:
            await asyncio.sleep(part if isinstance(part, float) else 0)
            if isinstance(part, bytes):
                yield part

    async def run():
        with admission.upload() as upload:
            return await read_upload(stream(), headers, limits=limits, upload=upload)

    try:
        return asyncio.run(run())
    finally:
        assert admission.held_bytes == 0 and admission.requests == 0


def refusal(*arguments, **options):
    with pytest.raises(RefusedError) as refused:
        read(*arguments, **options)
    return refused.value


def test_a_body_is_the_picture_itself_and_a_form_holds_it():
    data = jpeg()
    assert read([data[:100], data[100:]], {"content-type": "image/jpeg"}) == data
    assert read([data], {}) == data
    other = b'Content-Disposition: form-data; name="note"'
    body = form((other, b"hello"), (FILE, data))
    assert read([body], {"content-type": 'multipart/form-data; boundary="b"'}) == data


@given(st.binary(min_size=1, max_size=500), st.integers(min_value=1, max_value=64))
def test_any_bytes_go_through_a_form_unchanged(data, length):
    boundary = "x" * length + "-q"
    if boundary.encode() in data or data.endswith((b"\r", b"\n")):
        return
    assert file_of_form(form((FILE, data), boundary=boundary), boundary=boundary) == data


@given(st.binary(max_size=300))
def test_no_form_whatever_it_holds_raises_anything_but_a_refusal(data):
    try:
        file_of_form(data, boundary="b")
    except RefusedError as error:
        assert error.status == 422


def test_forms_without_one_file_are_refused_with_their_number():
    for body, text in [
        (form(), "0 files"),
        (form((FILE, b"a"), (FILE, b"b")), "2 files"),
        (form((FILE, b"")), "empty"),
        (form(*[(FILE, b"a")] * 9), "more than 8 parts"),
        (b"nonsense", "cannot be read"),
    ]:
        with pytest.raises(RefusedError, match=text) as refused:
            file_of_form(body, boundary="b")
        assert refused.value.status == 422
    for boundary in ("", "x" * 71):
        with pytest.raises(RefusedError, match="boundary"):
            file_of_form(b"", boundary=boundary)


def test_an_upload_over_the_limit_is_refused_by_its_stated_length_or_as_it_arrives():
    for headers in ({"content-length": "5000"}, {}):
        error = refusal([b"x" * 3000, b"x" * 2000], headers, upload_bytes=4000)
        assert error.status == 413 and "4000 bytes" in error.sentence


def test_an_empty_body_a_wrong_type_and_a_compressed_body_are_refused():
    assert refusal([], {"content-type": "image/png"}).status == 422
    error = refusal([b"{}"], {"content-type": "application/json"})
    assert error.status == 415 and "curl -F" in error.sentence
    assert refusal([b"x"], {"content-encoding": "gzip"}).status == 415


def test_an_upload_that_does_not_arrive_in_time_is_given_up():
    error = refusal([b"x", 5.0, b"y"], {}, read_seconds=0.05)
    assert error.status == 408 and "0.05 seconds" in error.sentence


def test_all_uploads_together_hold_no_more_than_the_limit():
    limits = Limits(upload_bytes=100, held_bytes=150)
    admission = Admission(limits, expected_wait=lambda: 3.2)
    with admission.upload() as first, admission.upload() as second:
        first.hold(100)
        with pytest.raises(RefusedError, match="150") as refused:
            second.hold(60)
        assert refused.value.status == 503 and refused.value.headers == {"Retry-After": "3"}
        first.release()
        second.hold(60)
    assert admission.held_bytes == 0


def test_one_request_more_than_may_wait_is_told_to_come_back():
    admission = Admission(Limits(waiting=1), expected_wait=lambda: 0.1)
    with admission.request(), pytest.raises(RefusedError) as refused, admission.request():
        pass
    assert refused.value.status == 429 and refused.value.headers == {"Retry-After": "1"}
    admission.close()
    with pytest.raises(RefusedError, match="stopping"), admission.request():
        pass


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_every_kind_of_picture_that_is_promised_passes(kind):
    check_picture(encoded(photo(1), kind), max_pixels=10**6)


def test_what_is_no_picture_is_refused_by_its_first_bytes():
    for data in (b"hello", b"<html>", b"%PDF-1.7", b"\0" * 64, b"PK\3\4", b"RIFF\0\0\0\0WAVE"):
        with pytest.raises(RefusedError) as refused:
            check_picture(data, max_pixels=10**6)
        assert refused.value.status == 415


def test_a_webp_canvas_over_the_limit_is_refused_before_it_is_opened():
    for options in ({"lossless": True}, {"lossless": False}):
        data = encoded(photo(1, 48, 64), "WEBP", **options)
        assert webp_size(data) == (48, 64)
        with pytest.raises(RefusedError, match="48 x 64") as refused:
            check_picture(data, max_pixels=48 * 64 - 1)
        assert refused.value.status == 413
    huge = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2
    assert webp_size(huge) == (16384, 16384)
    assert webp_size(b"RIFF\0\0\0\0WEBPVP8 ") == (0, 0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # as Pillow calls a TIFF that is cut short
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_the_number_of_pixels_is_read_from_the_header(kind):
    data = encoded(photo(1, 48, 64), kind)
    assert num_pixels(data) == 48 * 64
    for length in (1, 9, 15, 25):
        assert num_pixels(data[:length]) in (0, 48 * 64)


def test_a_jpeg_of_endless_scans_is_refused():
    with pytest.raises(RefusedError, match="scans") as refused:
        check_picture(b"\xff\xd8\xff" + b"\xff\xda" * (MOST_SCANS + 1), max_pixels=10**6)
    assert refused.value.status == 422


def test_headers_are_split_into_kind_and_options():
    assert parse_header('Multipart/Form-Data; boundary="a b"; x') == (
        "multipart/form-data",
        {"boundary": "a b", "x": ""},
    )
    assert parse_header("") == ("", {})


def png_bomb(height, width):
    """A PNG of a few bytes that says it is large."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0" * 99))
        + chunk(b"IEND", b"")
    )


def test_a_bomb_is_refused_as_too_large_without_being_unpacked():
    from vitrine.data.decoding.decode import decode
    from vitrine.errors import ImageSizeError
    from vitrine.serving.admission import refusal_of

    with pytest.raises(ImageSizeError) as error:
        decode(png_bomb(20_000, 20_000), max_pixels=50_000_000)
    assert refusal_of(error.value).status == 413
