import numpy as np
import pytest
import torch
from PIL import Image
from unit.data.pictures import smooth

from vitrine.data.preparing import preprocess as resampling
from vitrine.data.preparing.preprocess import (
    BY_TORCH,
    FILTERS,
    PILLOW_TOLERANCE,
    planes,
    resize,
    resize_and_crop,
)

BY_PILLOW = sorted(set(FILTERS) - set(BY_TORCH))

SIZES = [(48, 64), (100, 200), (211, 123), (30, 300), (200, 350)]


def noise(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def difference(pixels, size, interpolation):
    # Along the rows first. Left to itself Pillow 13 takes whichever order is cheaper, and where bicubic overshoots
    # black or white between the two passes the order shows.
    filter_ = Image.Resampling[interpolation.upper()]
    wanted = Image.fromarray(pixels).resize((size[1], len(pixels)), filter_).resize(size[::-1], filter_)
    found = resize(planes(pixels, 3), size, interpolation).permute(1, 2, 0).numpy().astype(int)
    return np.abs(found - np.asarray(wanted))


@pytest.mark.parametrize("interpolation", BY_TORCH)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("picture", [smooth, noise])
def test_resampling_equals_pillows_within_its_tolerance(interpolation, size, picture):
    found = difference(picture(123, 211), size, interpolation)
    # What the first pass is off by a level, the second weights by more than one in bicubic.
    assert found.max() <= (PILLOW_TOLERANCE if interpolation == "bicubic" else 1)
    assert found.mean() < 0.01


@pytest.mark.parametrize("interpolation", BY_PILLOW)
def test_what_torch_does_not_have_is_pillows_own(interpolation):
    assert difference(smooth(123, 211), (48, 64), interpolation).max() == 0


def test_any_number_of_channels_is_resampled_each_as_by_itself():
    pixels = np.concatenate([noise(40, 50), smooth(40, 50)[:, :, :2]], axis=2)  # (40, 50, 5)
    for interpolation in (*BY_TORCH, *BY_PILLOW):
        whole = resize(planes(pixels, 5), (16, 24), interpolation)
        alone = [resize(planes(pixels[:, :, [c]], 1), (16, 24), interpolation)[0] for c in range(5)]
        # The kernel for three channels rounds its weights to other bits than the one for planes.
        assert (whole.int() - torch.stack(alone).int()).abs().max() <= PILLOW_TOLERANCE


def test_an_image_that_has_the_size_is_left_as_it_is():
    image = planes(smooth(20, 30), 3)
    assert resize(image, (20, 30), "bicubic") is image


# Sizes of photos, and shapes up to 1 : 64 that are still computed whole.
@pytest.mark.parametrize(
    "shape", [(480, 640), (640, 480), (427, 640), (1080, 1920), (33, 31), (20, 1200), (1200, 20)]
)
@pytest.mark.parametrize("interpolation", sorted(FILTERS))
def test_resizing_with_a_crop_equals_resizing_whole_and_cropping_exactly(shape, interpolation):
    image = planes(noise(*shape), 3)
    rows, columns = (round(side * 64 / min(shape)) for side in shape)
    top, left = (rows - 56) // 2, (columns - 56) // 2
    whole = resize(image, (rows, columns), interpolation)[:, top : top + 56, left : left + 56]
    assert torch.equal(resize_and_crop(image, (rows, columns), (top, left, 56, 56), interpolation), whole)


@pytest.mark.parametrize("shape", [(480, 640), (37, 1000), (1000, 37), (3000, 20), (3, 900), (900, 1)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_a_part_resized_by_itself_equals_that_part_of_the_whole_within_the_tolerance(
    shape, interpolation, monkeypatch
):
    image = planes(noise(*shape), 3)
    rows, columns = (round(side * 64 / min(shape)) for side in shape)
    top, left = (rows - 56) // 2, (columns - 56) // 2
    filter_ = FILTERS[interpolation]
    tall = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((columns, shape[0]), filter_)
    wanted = np.asarray(tall.resize((columns, rows), filter_))[top : top + 56, left : left + 56].astype(int)
    monkeypatch.setattr(resampling, "WHOLE_PIXELS", 0)
    part = resize_and_crop(image, (rows, columns), (top, left, 56, 56), interpolation)
    assert np.abs(part.permute(1, 2, 0).numpy() - wanted).max() <= PILLOW_TOLERANCE


@pytest.mark.parametrize("interpolation", BY_TORCH)
def test_a_tall_narrow_image_does_not_grow_before_it_shrinks(interpolation, monkeypatch):
    image = planes(smooth(2000, 3), 3)
    expected = resize(image, (32, 32), interpolation)
    monkeypatch.setattr(resampling, "WHOLE_PIXELS", 1000)
    sizes = []
    interpolate = resampling.F.interpolate
    monkeypatch.setattr(
        resampling.F,
        "interpolate",
        lambda *a, size, **k: sizes.append(size) or interpolate(*a, size=size, **k),
    )
    found = resize(image, (32, 32), interpolation)
    assert sizes == [(32, 3), (32, 32)]
    assert (found.int() - expected.int()).abs().max() <= PILLOW_TOLERANCE
