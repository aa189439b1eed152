"""Every way in which a program may hold or name a picture."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from unit.data.pictures import encoded, smooth
from unit.data.web import answering

from vitrine.data.decoding import picture_input
from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.picture_input import is_single_array, read_picture
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.in_memory import PictureList
from vitrine.errors import ConfigError, DataError, DownloadError
from vitrine.runtime import download

PIXELS = smooth(20, 30)
GREY = PIXELS[:, :, :1]
PNG = encoded(PIXELS)


def pixels(picture):
    return decode(read_picture(picture))


@pytest.mark.parametrize(
    "picture",
    [
        PIXELS,
        PIXELS.transpose(2, 0, 1),
        PIXELS.astype(np.int64),
        PIXELS.astype(np.float32) / 255,
        PIXELS.astype(np.float64).transpose(2, 0, 1) / 255,
        np.dstack([PIXELS, np.full((20, 30), 255, np.uint8)]),
        torch.from_numpy(PIXELS.copy()),
        torch.from_numpy(PIXELS.copy()).permute(2, 0, 1),
        torch.from_numpy(PIXELS.copy()).permute(2, 0, 1) / 255,
        (torch.from_numpy(PIXELS.copy()).permute(2, 0, 1) / 255).requires_grad_(),
        PNG,
        bytearray(PNG),
        memoryview(PNG),
        io.BytesIO(PNG),
        Image.fromarray(PIXELS),
    ],
    ids=[
        "HWC", "CHW", "integers", "float HWC", "float CHW", "RGBA", "tensor HWC", "tensor CHW", "float tensor",
        "tensor with gradient", "bytes", "bytearray", "memoryview", "file object", "Pillow",
    ],
)  # fmt: skip
def test_every_kind_of_input_is_the_same_picture(picture):
    assert np.array_equal(pixels(picture), PIXELS)


@pytest.mark.parametrize("make", [str, Path], ids=["str", "Path"])
def test_a_path_is_read(make, tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    assert np.array_equal(pixels(make(tmp_path / "a.png")), PIXELS)


@pytest.mark.parametrize(
    "picture",
    [GREY, GREY[:, :, 0], GREY.transpose(2, 0, 1), torch.from_numpy(GREY.copy()), GREY[:, :, 0] / 255.0],
    ids=["HW1", "HW", "1HW", "tensor HW1", "float HW"],
)
def test_grey_pictures_of_every_layout_are_the_same(picture):
    assert np.array_equal(pixels(picture), GREY.repeat(3, axis=2))


def test_half_precision_is_as_near_as_it_can_be():
    for dtype in (torch.float16, torch.bfloat16):
        found = pixels((torch.from_numpy(PIXELS.copy()).permute(2, 0, 1) / 255).to(dtype)).astype(int)
        assert np.abs(found - PIXELS).max() <= (1 if dtype == torch.bfloat16 else 0)


def test_booleans_are_black_and_white():
    assert set(np.unique(pixels(PIXELS[:, :, 0] > 100))) == {0, 255}


def test_transparent_pixels_of_an_array_are_composited_on_white():
    clear = np.zeros((4, 5, 4), np.uint8)
    assert (pixels(clear) == 255).all()
    assert np.array_equal(pixels(clear), pixels(Image.fromarray(clear)))


def test_where_both_ends_could_be_channels_each_library_keeps_its_convention():
    cube = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    assert np.array_equal(pixels(cube), cube)
    assert np.array_equal(pixels(torch.from_numpy(cube)), cube.transpose(1, 2, 0))


@pytest.mark.parametrize(
    "picture",
    [
        np.full((4, 4, 3), 300),
        np.full((4, 4, 3), -1),
        np.full((4, 4, 3), 255.0),
        np.full((4, 4, 3), np.nan),
        np.full((4, 4, 3), np.inf),
        torch.randn(3, 8, 8) * 3,
        np.zeros((5, 4, 2), np.uint8),
        np.zeros((5, 5, 5), np.uint8),
        np.zeros((2, 4, 4, 3), np.uint8),
        np.zeros(7, np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 4, 3), np.complex64),
        7,
        None,
        {"a": 1},
        io.StringIO("text"),
    ],
)
def test_what_is_no_picture_is_refused_in_one_sentence(picture):
    with pytest.raises(DataError) as caught:
        read_picture(picture, name="mine")
    assert "mine" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_object_is_read_from_its_beginning_once_even_if_it_was_read_before():
    file = io.BytesIO(PNG)
    file.read()
    source = PictureList([file, file])
    for index in (0, 1, 0):
        assert np.array_equal(decode(source.read(index).data), PIXELS)


@pytest.mark.parametrize(
    "stack",
    [
        np.stack([PIXELS, PIXELS]),
        np.stack([PIXELS, PIXELS]).transpose(0, 3, 1, 2),
        torch.from_numpy(np.stack([PIXELS, PIXELS])).permute(0, 3, 1, 2) / 255,
    ],
    ids=["NHWC", "NCHW", "tensor"],
)
def test_a_stack_is_a_list_of_pictures(stack):
    source = PictureList(stack)
    assert len(source) == 2 and np.array_equal(decode(source.read(1).data), PIXELS)


def test_a_generator_is_a_list_of_pictures():
    source = PictureList(picture for picture in (PIXELS, PNG))
    assert len(source) == 2 and np.array_equal(decode(source.read(1).data), PIXELS)


@pytest.mark.parametrize(
    "one",
    [
        "photo.jpg", Path("photo.jpg"), PNG, PIXELS, PIXELS.transpose(2, 0, 1), torch.zeros(3, 8, 8), io.BytesIO(PNG),
        Image.new("RGB", (8, 8)),
    ],
)  # fmt: skip
def test_a_single_picture_where_a_list_is_needed_is_refused(one):
    with pytest.raises(ConfigError, match="list of pictures"):
        PictureList(one)


def test_many_grey_pictures_may_be_one_array():
    assert not is_single_array(np.zeros((10, 8, 8))) and len(PictureList(np.zeros((10, 8, 8)))) == 10


def test_preprocessing_takes_every_kind_of_input():
    preprocess = Preprocess(size=(16, 16))
    expected = preprocess(PNG)
    for picture in (PIXELS, Image.fromarray(PIXELS), torch.from_numpy(PIXELS.copy()).permute(2, 0, 1) / 255):
        assert torch.equal(preprocess(picture), expected)


def test_a_url_is_downloaded_once_within_limits(monkeypatch):
    with answering(lambda request: (200, {}, PNG)) as (address, requests):
        source = PictureList([f"{address}/a.png"])
        for _ in range(3):
            assert np.array_equal(decode(source.read(0).data), PIXELS)
        assert len(requests) == 1 and source.name(0) == f"{address}/a.png" and source.path(0) is None
        monkeypatch.setattr(picture_input, "URL_LIMITS", download.Limits(max_bytes=len(PNG) - 1))
        with pytest.raises(DownloadError):
            read_picture(f"{address}/b.png")


def test_a_url_that_answers_with_an_error_is_refused():
    with answering(lambda request: (404, {}, b"")) as (address, _), pytest.raises(DownloadError, match="404"):
        read_picture(f"{address}/a.png")


def test_a_redirect_from_a_public_to_a_private_address_is_not_followed(monkeypatch):
    def answer(request):
        return (302, {"Location": "/b.png"}, b"") if request.path == "/a.png" else (200, {}, PNG)

    with answering(answer) as (address, _):
        assert read_picture(f"{address}/a.png") == PNG  # private from the start: the caller asked for it
        asked = []
        monkeypatch.setattr(download, "is_private", lambda host: asked.append(host) or len(asked) == 1)
        with pytest.raises(DownloadError, match="private"):
            read_picture(f"{address}/a.png")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("10.1.2.3", True), ("169.254.169.254", True), ("::1", True),
     ("8.8.8.8", False), ("no-such-host.invalid", False)],
)  # fmt: skip
def test_private_addresses_are_recognised(host, expected):
    assert download.is_private(host) is expected
