"""The kind of a file by its content; photos of phones; videos."""

import io

import numpy as np
import pytest
from PIL import Image
from unit.data.pictures import encoded, smooth

from vitrine.data.decoding import file_kind
from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.file_kind import frames_advice, is_image_data, is_image_file, is_video_data
from vitrine.data.decoding.image_file import read_facts
from vitrine.errors import ImageError


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000"])
def test_the_signature_of_every_format_is_known(kind):
    if kind == "AVIF" and not Image.registered_extensions().get(".avif"):
        pytest.skip("this Pillow has no AVIF")
    assert is_image_data(encoded(smooth(12, 16), kind)[:32])


@pytest.mark.parametrize(
    "text", [b"BM is text", b"P6 is text", b"", b"\0" * 40, b"RIFF....AVI LIST", b"II am"]
)
def test_other_files_are_not_images(text):
    assert not is_image_data(text)


def test_a_raw_file_is_not_read_as_the_tiff_that_it_resembles(tmp_path):
    (tmp_path / "DSC1.NEF").write_bytes(encoded(smooth(12, 16), "TIFF"))
    assert not is_image_file(str(tmp_path), "DSC1.NEF")


def test_a_photo_of_a_phone_is_decoded_if_the_extra_is_installed():
    heif = pytest.importorskip("pillow_heif")
    pixels = smooth(40, 60)
    stream = io.BytesIO()
    heif.from_pillow(Image.fromarray(pixels)).save(stream, quality=90)
    facts = read_facts(stream.getvalue(), name="IMG_1.HEIC")
    assert (facts.format, facts.height, facts.width) == ("HEIF", 40, 60)
    decoded = decode(stream.getvalue(), name="IMG_1.HEIC")
    assert decoded.shape == (40, 60, 3)
    assert np.abs(decoded.astype(float) - pixels).mean() < 8  # lossy, with colours at half the resolution


def test_a_photo_of_a_phone_names_the_extra_that_is_missing(monkeypatch):
    monkeypatch.setattr(file_kind, "pillow_heif", None)
    with pytest.raises(ImageError) as caught:
        decode(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", name="IMG_1.HEIC")
    assert caught.value.kind == "not an image" and "pip install 'vitrine[heic]'" in str(caught.value)


def test_a_video_is_answered_with_the_command_that_extracts_frames():
    assert is_video_data(b"\0\0\0\x18ftypqt  ") and is_video_data(b"\x1a\x45\xdf\xa3")
    assert not is_video_data(encoded(smooth(12, 16), "WEBP"))
    assert "ffmpeg -i 'my clip.mov'" in frames_advice("my clip.mov")
