import numpy as np
import pytest
import torch
from PIL import Image
from unit.data.pictures import smooth

from vitrine.data.preparing.resampling import BY_PILLOW, BY_TORCH, PILLOW_TOLERANCE, planes, resize

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
