import io
import os
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from unit.data.pictures import encoded, smooth

from vitrine.data.decoding import decode as decoding
from vitrine.data.decoding import image_file as colours
from vitrine.data.decoding.decode import DECODER_TOLERANCE, decode, read_layout, scale_factor, upper_rows
from vitrine.data.decoding.image_file import MAX_SIDE, first_frame, read_facts
from vitrine.errors import DataError, ImageSizeError


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setattr(decoding, "simplejpeg", None)
    elif decoding.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")
    return request.param


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_pixels_are_pillows_whichever_decoder_runs(decoder, subsampling, progressive):
    data = encoded(smooth(61, 83), "JPEG", quality=90, subsampling=subsampling, progressive=progressive)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(decode(data) - expected).max() <= DECODER_TOLERANCE


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_rotation_is_applied_as_pillow_does(decoder, orientation, kind):
    image = Image.fromarray(smooth(40, 60))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")).astype(int)
    pixels = decode(data)
    assert pixels.shape == expected.shape
    assert np.abs(pixels - expected).max() <= DECODER_TOLERANCE
    facts = read_facts(data)
    assert (facts.height, facts.width, facts.orientation) == (*pixels.shape[:2], orientation)


def test_alpha_is_composited_over_white():
    pixels = np.zeros((4, 4, 4), dtype=np.uint8)
    pixels[:, 2:, 3] = 255  # left transparent, right opaque black
    found = decode(encoded(pixels))
    assert (found[:, :2] == 255).all() and (found[:, 2:] == 0).all()


def test_half_transparent_black_over_white_is_grey():
    pixels = np.zeros((2, 2, 4), dtype=np.uint8)
    pixels[..., 3] = 128
    assert abs(int(decode(encoded(pixels))[0, 0, 0]) - 127) <= 1


def test_transparent_palette_entries_become_white():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.info["transparency"] = 0
    assert (decode(encoded(image, "GIF", transparency=0)) == 255).all()


def test_sixteen_bit_grey_is_scaled_and_not_clipped_to_white():
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    found = decode(encoded(ramp))
    assert np.array_equal(found[:, :, 0], np.rint(ramp / 257).astype(np.uint8))
    assert read_facts(encoded(ramp)).bits == 16


def test_cmyk_jpeg_becomes_the_colours_that_pillow_gives(decoder):
    image = Image.fromarray(smooth(30, 20)).convert("CMYK")
    data = encoded(image, "JPEG", quality=95)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode(data), expected)


def test_grey_jpeg_has_three_equal_channels_or_one(decoder):
    data = encoded(Image.fromarray(smooth(30, 20)).convert("L"), "JPEG")
    three, one = decode(data), decode(data, channels=1)
    assert three.shape == (30, 20, 3) and one.shape == (30, 20, 1)
    assert (three == one).all()


def test_bilevel_palette_and_float_images_are_read():
    assert set(np.unique(decode(encoded(Image.new("1", (8, 8), 1))))) == {255}
    palette = Image.fromarray(smooth(8, 8)).quantize(4)
    assert np.array_equal(decode(encoded(palette)), np.asarray(palette.convert("RGB")))
    float_image = Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8))
    assert decode(encoded(float_image, "TIFF")).max() == 255


def images_of_every_mode():
    picture = Image.fromarray(smooth(13, 17))
    clear = picture.convert("RGBA")
    clear.putalpha(Image.fromarray(smooth(13, 17)[:, :, 0]))
    palette = picture.quantize(7)
    see_through = palette.copy()
    see_through.info["transparency"] = 2
    wide = np.arange(13 * 17, dtype=np.uint16).reshape(13, 17) * 290
    return {
        "RGB": picture, "RGBA": clear, "LA": clear.convert("LA"), "L": picture.convert("L"), "P": palette,
        "P with transparency": see_through, "CMYK": picture.convert("CMYK"), "1": picture.convert("1"),
        "I;16": Image.fromarray(wide), "I": Image.fromarray(wide.astype(np.int32) * 1000),
        "F": Image.fromarray(wide.astype(np.float32) - 99),
    }  # fmt: skip


@pytest.mark.parametrize("name", images_of_every_mode())
def test_a_large_image_that_is_converted_in_strips_is_the_same(monkeypatch, name):
    image = images_of_every_mode()[name]
    whole = first_frame(image)
    monkeypatch.setattr(colours, "STRIP_PIXELS", 3 * 17)  # five strips, the last of one row
    assert np.array_equal(first_frame(image), whole)


PEAK = """
import sys
from vitrine.data.decoding.decode import decode
def kilobytes(what):
    return int(open("/proc/self/status").read().split(what + ":")[1].split()[0])
decode(open(sys.argv[2], "rb").read())
data, before = open(sys.argv[1], "rb").read(), kilobytes("VmRSS")
decode(data)
print((kilobytes("VmHWM") - before) * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no such account of memory here")
@pytest.mark.parametrize(
    ("kind", "mode"), [("WEBP", "RGBA"), ("PNG", "RGBA"), ("PNG", "I;16"), ("AVIF", "RGBA")]
)
def test_no_kind_needs_more_than_twenty_bytes_a_pixel_to_be_unpacked(tmp_path, kind, mode):
    height, width = 3000, 4000
    options = {"WEBP": {"lossless": True, "method": 0}, "PNG": {"compress_level": 1}, "AVIF": {"speed": 10}}[
        kind
    ]
    if mode == "I;16":
        picture = Image.fromarray(np.full((height, width), 30_000, dtype=np.uint16))
    else:
        picture = Image.new(mode, (width, height), (10, 20, 30, 128))
    (tmp_path / "large").write_bytes(encoded(picture, kind, **options))
    (tmp_path / "small").write_bytes(encoded(picture.resize((40, 30)), kind))  # what the reader itself needs
    command = [sys.executable, "-c", PEAK, str(tmp_path / "large"), str(tmp_path / "small")]
    environment = {**os.environ, "PYTHONPATH": str(Path(decoding.__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) < 20 * height * width


def test_the_first_frame_of_an_animation_is_taken():
    frames = [Image.new("RGB", (5, 4), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data)[0, 0].tolist() == [255, 0, 0]
    assert read_facts(data).num_frames == 2


def test_raw_pixels_pass_through_and_other_arrays_are_refused():
    pixels = smooth(6, 7)
    assert decode(pixels) is pixels
    with pytest.raises(DataError, match=r"^x.*float64.*\(2, 2\); pass uint8"):
        decode(np.zeros((2, 2)), name="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("min_size", [(100, 100), (51, 30), (30, 30)])
def test_scaled_decoding_keeps_the_least_size_and_the_picture(decoder, min_size):
    data = encoded(smooth(208, 304), "JPEG", quality=95)
    found = decode(data, min_size=min_size)
    assert found.shape[0] >= min_size[0] and found.shape[1] >= min_size[1]
    assert found.shape[0] < 208
    smaller = Image.fromarray(decode(data)).resize(found.shape[1::-1], Image.Resampling.BOX)
    # Two good ways to halve a smooth picture differ by a level or two.
    assert np.abs(np.asarray(smaller).astype(int) - found).mean() < 2


def test_both_decoders_scale_alike(monkeypatch):
    if decoding.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")
    data = encoded(smooth(205, 301), "JPEG", quality=95)
    fast = decode(data, min_size=(60, 60))
    monkeypatch.setattr(decoding, "simplejpeg", None)
    assert np.abs(decode(data, min_size=(60, 60)).astype(int) - fast).max() <= DECODER_TOLERANCE


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_upper_rows_are_exactly_those_of_the_whole(decoder, subsampling):
    data = encoded(smooth(240, 97), "JPEG", quality=85, subsampling=subsampling)
    layout = read_layout(data)
    found = decoding.decode_upper_rows(data, layout, rows=90)
    assert 90 <= len(found) < 240
    assert np.array_equal(found[:90], decode(data)[:90])


def test_a_progressive_turned_or_cut_file_is_never_stopped_early():
    picture = smooth(240, 97)
    progressive = encoded(picture, "JPEG", progressive=True)
    whole = encoded(picture, "JPEG")
    assert upper_rows(progressive, read_layout(progressive), rows=50) is None
    assert upper_rows(whole[:-30], read_layout(whole[:-30]), rows=50) is None
    assert upper_rows(whole, read_layout(whole), rows=230) is None
    assert upper_rows(whole, read_layout(whole), rows=50) is not None


def test_scale_factor_follows_the_upright_size():
    assert scale_factor(800, 400, min_size=(100, 100)) == 4
    assert scale_factor(800, 400, min_size=(390, 190)) == 2
    assert scale_factor(800, 400, min_size=(190, 390), orientation=6) == 2
    assert scale_factor(800, 400, min_size=None) == 1


def test_stray_bytes_between_segments_do_no_harm(decoder):
    data = encoded(smooth(40, 40), "JPEG")
    strays = data[:-2] + b"\0\1\2\3" + data[-2:]
    assert np.array_equal(decode(strays), decode(data))


def test_a_rotation_written_as_a_long_after_fill_bytes_is_found():
    tiff = b"MM\0*\0\0\0\x08" + struct.pack(">HHHII", 1, 0x0112, 4, 1, 6) + b"\0\0\0\0"
    segment = b"Exif\0\0" + tiff
    data = encoded(smooth(20, 30), "JPEG")
    turned = data[:2] + b"\xff\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]
    assert read_layout(turned).orientation == 6


@pytest.mark.parametrize("keep", [0.3, 0.8])
def test_a_truncated_jpeg_is_named_with_its_reason(decoder, keep):
    data = encoded(smooth(200, 200), "JPEG", quality=95)
    with pytest.raises(DataError, match=r"^cats/7\.jpg is a damaged JPEG: "):
        decode(data[: int(len(data) * keep)], name="cats/7.jpg")


def test_a_truncated_png_is_named_with_its_reason():
    data = encoded(np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8))
    with pytest.raises(DataError, match=r"^a\.png is a damaged PNG: "):
        decode(data[:2000], name="a.png")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"x\.jpg is empty \(0 bytes\)"),
        (
            b"hello, this is a text file\n" * 10,
            r"x\.jpg is not .*\(it.*like text\)",
        ),
        (b"<!DOCTYPE html><html></html>", r"x\.jpg is not .*HTML"),
        (
            b"\0\0\0\x18ftypheic\0\0\0\0mif1heic\xff",
            r"x\.jpg is not .*\((HEIC.*vitrine\[heic\]|damaged HEIC)",
        ),
        (
            b"\0\0\0\x18ftypmp42\0\0\0\0isom\xff",
            r"x\.jpg is not .*video; .*ffmpeg.*x\.jpg",
        ),
        (b"%PDF-1.7\n\xff", r"x\.jpg is not .*\(a PDF\)"),
        (b"\0" * 900, r"x\.jpg is not .*zero bytes"),
        (b"\xff\xd8\xff\xe0 broken", r"x\.jpg is a damaged JPEG:.*header"),
    ],
)
def test_what_is_no_image_is_named_with_its_reason(decoder, data, message):
    with pytest.raises(DataError, match=message):
        decode(data, name="x.jpg")


def png_header(height: int, width: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packed = zlib.compress(b"\0" * 10_000)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(40_000, 40_000), (10, 100_000), (100_000, 1)])
def test_a_bomb_is_refused_by_its_header_before_it_is_unpacked(size, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("pixels were unpacked"))
    with pytest.raises(DataError, match=r"^b\.png (declares|is too large)"):
        decode(png_header(*size), name="b.png")


def test_a_jpeg_bomb_is_refused_by_its_header(decoder):
    data = bytearray(encoded(smooth(16, 16), "JPEG"))
    at = read_layout(bytes(data)).height_at
    data[at : at + 4] = struct.pack(">HH", 60_000, 60_000)
    with pytest.raises(ImageSizeError, match=r"b\.jpg .*178956970"):
        decode(bytes(data), name="b.jpg")
    assert MAX_SIDE == 65_535


def test_names_in_any_script_and_of_any_bytes_can_be_printed():
    name = "猫/фото-\udcff.jpg"
    with pytest.raises(DataError) as caught:
        decode(b"", name=name)
    assert str(caught.value) == "猫/фото-\\xff.jpg is empty (0 bytes)"
    str(caught.value).encode("utf-8")


def test_decoding_in_many_threads_leaves_the_warnings_of_the_process_as_they_were():
    data = encoded(smooth(16, 16))
    decode(data)
    before, interval = list(warnings.filters), sys.getswitchinterval()

    def work() -> None:
        for _ in range(100):
            decode(data)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert list(warnings.filters) == before


def test_pillow_does_not_warn_of_single_files(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # of a picture twice as large it warns
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        decode(encoded(smooth(10, 15)))
        warnings.warn("of the user's own code", stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["of the user's own code"]
