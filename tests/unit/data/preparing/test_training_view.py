import numpy as np
import pytest
import torch
from unit.data.pictures import encoded, smooth

from vitrine.data.decoding import decode as decoding
from vitrine.data.decoding.decode import decode
from vitrine.data.preparing.training_view import TrainView, inception_box
from vitrine.data.randomness import uniforms
from vitrine.errors import ConfigError


def numbers(count: int, view: TrainView, seed: int = 0) -> np.ndarray:
    return uniforms(seed, stream="view", epochs=0, positions=np.arange(count), count=view.num_uniforms)


def render(view: TrainView, data, own) -> torch.Tensor:
    out = torch.empty(view.channels, *view.size, dtype=torch.uint8)
    view.render(data, name="x", numbers=own, out=out)
    return out


def test_inception_boxes_lie_inside_and_keep_area_and_aspect():
    view = TrainView()
    areas, is_whole = [], 0
    for own in numbers(2000, view):
        top, left, height, width = inception_box(own, 300, 400, area=(0.05, 1), aspect=(3 / 4, 4 / 3))
        assert 0 <= top <= 300 - height and 0 <= left <= 400 - width
        areas.append(height * width / 120_000)
        assert 0.7 < width / height < 1.4
        is_whole += height == 300
    # Uniform between .05 and 1, less what does not fit at the large end.
    assert min(areas) > 0.045 and 0.4 < np.mean(areas) < 0.55


def test_a_box_that_never_fits_is_the_centre():
    own = numbers(1, TrainView())[0]
    assert inception_box(own, 10, 1000, area=(0.9, 1), aspect=(3 / 4, 4 / 3)) == (0, 493, 10, 13)


@pytest.mark.parametrize("has_simplejpeg", [True, False])
def test_the_short_way_through_a_jpeg_gives_the_pixels_of_the_long_way(monkeypatch, has_simplejpeg):
    if not has_simplejpeg:
        monkeypatch.setattr(decoding, "simplejpeg", None)
    view = TrainView(size=(48, 48))
    data = encoded(smooth(90, 120), "JPEG", quality=90)  # too small to be scaled, large enough to be stopped
    for own in numbers(20, view):
        long_way = render(view, decode(data), own)
        assert torch.equal(render(view, data, own), long_way)


def test_a_scaled_jpeg_gives_nearly_the_same_view():
    view = TrainView(size=(32, 32))
    data = encoded(smooth(400, 500), "JPEG", quality=95)
    differences = [
        (render(view, data, own).float() - render(view, decode(data), own).float()).abs().mean()
        for own in numbers(40, view)
    ]
    # The box lies within a quarter of a pixel of the view from where it was drawn.
    assert max(differences) < 4 and np.mean(differences) < 2


def test_flips_are_mirror_images_and_happen_half_the_time():
    view = TrainView(size=(16, 16))
    plain = TrainView(size=(16, 16), flip=False)
    flips = 0
    for own in numbers(200, view):
        a, b = render(view, smooth(30, 30), own), render(plain, smooth(30, 30), own)
        is_flipped = torch.equal(a, b.flip(-1))
        assert is_flipped or torch.equal(a, b)
        flips += is_flipped
    assert 70 < flips < 130


def test_other_crops_give_the_size_asked():
    picture = smooth(33, 47)
    for view in (
        TrainView(size=(24, 32), crop="none", flip=False),
        TrainView(size=(24, 32), crop="random", resize_size=(30, 40)),
        TrainView(size=(24, 32), crop="padded"),
        TrainView(size=(24, 32), channels=1),
    ):
        for own in numbers(5, view):
            assert render(view, picture, own).shape == (view.channels, 24, 32)


def test_no_crop_and_no_flip_is_a_plain_resize():
    view = TrainView(size=(20, 20), crop="none", flip=False)
    first, second = (render(view, smooth(40, 40), own) for own in numbers(2, view))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop": "centre"}, "crop .*inception, random, padded, none"),
        ({"crop": "random"}, "resize_size at least as large"),
        ({"interpolation": "lanczos"}, "interpolation .*bilinear or bicubic"),
        ({"area": (0.5, 1.5)}, "area .*between 0 and 1"),
    ],
)
def test_nonsense_is_refused_at_birth(values, message):
    with pytest.raises(ConfigError, match=message):
        TrainView(**values)
