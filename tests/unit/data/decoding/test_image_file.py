"""Files whose header lies, and formats that must not be opened at all."""

import io
import struct
import subprocess
import sys
import zlib

import pytest
from PIL import EpsImagePlugin, Image
from unit.data.pictures import encoded, smooth

from vitrine.data.decoding.declared_sizes import av1_frame_sizes
from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.image_file import FORMATS, open_image, read_facts
from vitrine.data.decoding.picture_input import pixels_of
from vitrine.errors import DataError, ImageSizeError

HUGE = 25_984
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\nshowpage\n"
MEASURE = """
import sys
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.preparing.training_view import TrainView
import numpy as np, torch
def kilobytes(what):
    return int(open("/proc/self/status").read().split(what + ":")[1].split()[0])
def prepare(data):
    for preprocess in (Preprocess(rule="shorter", crop_fraction=0.875), Preprocess(rule="squash", size=(384, 384))):
        preprocess(data)
    for crop in ("inception", "none"):
        view = TrainView(crop=crop)
        numbers = np.full(view.num_uniforms, 0.5)
        view.render(data, name="x", numbers=numbers, out=torch.empty(3, 224, 224, dtype=torch.uint8))
prepare(np.zeros((300, 400, 3), dtype=np.uint8))
data, before = open(sys.argv[1], "rb").read(), kilobytes("VmRSS")
try:
    prepare(data)
except ValueError:
    pass
print((kilobytes("VmHWM") - before) * 1024)
"""


def tiff(width, height, tags, data):
    """Write a grey TIFF, packed by Deflate, with further tags of one long each; its data comes last."""
    entries = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1} | tags
    end = 8 + 2 + 12 * len(entries) + 4
    body = b"".join(
        struct.pack("<HHII", tag, 4, 1, end if tag in (273, 324) else value)
        for tag, value in sorted(entries.items())
    )
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + struct.pack("<I", 0) + data


def png(width, height, *, extra=b""):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes((1 + 3 * width) * height), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def tiled(tile_height, tile_width):
    data = zlib.compress(bytes(1000))
    return tiff(10, 10, {322: tile_width, 323: tile_height, 324: 0, 325: len(data)}, data)


def strips(rows):
    data = zlib.compress(bytes(100))
    return tiff(10, 10, {273: 0, 278: rows, 279: len(data)}, data)


def contradicting_avif():
    """An AVIF of 2,200 x 2,200 pixels whose container says 10 x 10."""
    file = io.BytesIO()
    Image.new("RGB", (2200, 2200)).save(file, "AVIF", speed=10)
    data = bytearray(file.getvalue())
    at = data.index(b"ispe") + 8
    data[at : at + 8] = struct.pack(">II", 10, 10)
    return bytes(data)


def contradicting_icon():
    picture = png(4000, 4000)
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(picture), 22) + picture


def peak_bytes(data, tmp_path):
    (tmp_path / "picture").write_bytes(data)
    answer = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "picture")], capture_output=True, text=True, check=True
    )
    return int(answer.stdout)


@pytest.mark.parametrize(
    "data",
    [tiled(HUGE, HUGE), tiled(64, 16_000_000), tiled(16_000_000, 64), contradicting_avif()],
    ids=["tile", "wide tile", "tall tile", "avif"],
)
def test_a_part_far_larger_than_the_image_is_refused_by_its_header(data):
    for read in (decode, read_facts):
        with pytest.raises(ImageSizeError):
            read(data, name="x")


def test_a_tiff_that_the_caller_opened_is_refused_too():
    with pytest.raises(ImageSizeError):
        pixels_of(Image.open(io.BytesIO(tiled(HUGE, HUGE))))


def test_a_small_image_in_a_tile_of_the_usual_size_is_read():
    data = zlib.compress(bytes(512 * 512))
    assert decode(tiff(10, 10, {322: 512, 323: 512, 324: 0, 325: len(data)}, data)).shape == (10, 10, 3)


@pytest.mark.parametrize("rows", [10, 2**32 - 1, 2**31 - 1, 10**8])
def test_a_strip_of_more_rows_than_the_image_costs_nothing(rows):
    try:
        assert decode(strips(rows)).shape == (10, 10, 3)
    except DataError:
        assert rows > 10


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (png(1, 60_000), 30e6),
        (png(60_000, 1), 30e6),
        (tiled(HUGE, HUGE), 30e6),
        (contradicting_avif(), 30e6),
        (strips(2**31 - 1), 30e6),
        # Pillow keeps at most 64 MB of text.
        (png(4, 4, extra=b"".join(
            struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
            for text in (b"k%d\0\0" % number + zlib.compress(bytes(2**20 - 9)) for number in range(70))
        )), 90e6),
    ],
    ids=["tall", "wide", "tile", "avif", "strip", "text"],
)  # fmt: skip
def test_a_small_hostile_file_costs_little_memory_in_every_view(data, most, tmp_path):
    assert len(data) < 100_000
    assert peak_bytes(data, tmp_path) < most


def test_a_lying_icon_counts_with_the_size_of_its_picture():
    with pytest.raises(ImageSizeError):
        open_image(contradicting_icon(), max_pixels=10_000_000)


def test_postscript_named_as_an_image_never_reaches_ghostscript(monkeypatch):
    def launched(*args, **kwargs):
        raise AssertionError("Ghostscript was launched")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", launched)
    with pytest.raises(DataError, match="PostScript"):
        decode(EPS, name="photo.jpg")


@pytest.mark.parametrize(
    "kind", ["EPS", "PDF", "PSD", "WMF", "FITS", "XBM", "IM", "MPEG", "HDF5", "BUFR", "GRIB"]
)
def test_formats_that_run_programs_or_are_no_photos_are_not_opened(kind):
    assert kind not in FORMATS


@pytest.mark.parametrize(
    "kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO", "TGA"]
)
def test_each_supported_format_is_opened(kind):
    with open_image(encoded(smooth(32, 48), kind)) as image:
        assert image.format == kind and image.size == ((48, 32) if kind != "ICO" else image.size)


def test_the_frame_size_of_an_avif_is_read_from_its_av1_data():
    file = io.BytesIO()
    Image.fromarray(smooth(50, 70)).save(file, "AVIF")
    assert set(av1_frame_sizes(file.getvalue())) == {(50, 70)}
    frames = [Image.fromarray(smooth(50, 70, seed=seed)) for seed in range(2)]
    file = io.BytesIO()
    frames[0].save(file, "AVIF", save_all=True, append_images=frames[1:])
    assert (50, 70) in set(av1_frame_sizes(file.getvalue()))


def test_damage_in_an_avifs_boxes_raises_nothing():
    file = io.BytesIO()
    Image.fromarray(smooth(50, 70)).save(file, "AVIF")
    data = file.getvalue()
    for length in range(0, len(data), 7):
        list(av1_frame_sizes(data[:length]))
    for place in range(min(len(data), 400)):
        list(av1_frame_sizes(data[:place] + b"\xff" + data[place + 1 :]))
