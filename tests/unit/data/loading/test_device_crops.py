import numpy as np
import pytest
import torch
from torch.nn import functional as F
from unit.data.pictures import smooth

from vitrine.data.loading.device_crops import CUT_TOLERANCE, cut_all, groups_of
from vitrine.data.preparing.preprocess import resize

# Larger and smaller than the view, a single pixel, a line, the view's own size.
BOXES = [(0, 0, 60, 80), (5, 7, 31, 50), (3, 9, 20, 24), (10, 10, 1, 1), (0, 4, 60, 1), (17, 0, 9, 80)]
SIZE = (20, 24)


def pictures(count=6):
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)  # every edge there is
    made = [noise, *(smooth(60 + number, 80 + 3 * number, seed=number) for number in range(1, count))]
    return [torch.from_numpy(picture.copy()).permute(2, 0, 1) for picture in made]


def test_crops_cut_together_are_those_cut_one_by_one():
    images, boxes = pictures(), np.array(BOXES)
    is_flipped = np.arange(len(BOXES)) % 2 == 1
    views = cut_all(images, boxes, is_flipped, size=SIZE)
    assert views.shape == (len(BOXES), 3, *SIZE) and views.dtype == torch.uint8
    for view, image, (top, left, height, width), flip in zip(views, images, BOXES, is_flipped, strict=True):
        part = image[:, top : top + height, left : left + width]
        exact = F.interpolate(part[None].float(), size=SIZE, mode="bilinear", antialias=True)[0]
        workers = resize(part, SIZE, "bilinear")
        if flip:
            exact, workers = exact.flip(-1), workers.flip(-1)
        # Both are sums of the same weights in single precision: half a level is the rounding to uint8 itself.
        assert (view.float() - exact).abs().max() <= 0.5 + 1e-3
        assert (view.float() - workers.float()).abs().max() <= CUT_TOLERANCE


def test_a_crop_of_the_views_own_size_is_copied():
    (image,) = pictures(1)
    (view,) = cut_all([image], np.array([(3, 9, *SIZE)]), np.array([False]), size=SIZE)
    assert torch.equal(view, image[:, 3 : 3 + SIZE[0], 9 : 9 + SIZE[1]])


def test_a_crop_does_not_depend_on_its_company():
    images, boxes, is_flipped = pictures(), np.array(BOXES), np.zeros(len(BOXES), dtype=bool)
    together = cut_all(images, boxes, is_flipped, size=SIZE)
    for number, image in enumerate(images):
        alone = cut_all([image], boxes[[number]], is_flipped[[number]], size=SIZE)[0]
        # Room to spare may change the order of a sum, and so which way a half is rounded.
        assert (alone.int() - together[number].int()).abs().max() <= 1


@pytest.mark.parametrize("most_pixels", [50, 2000, 10**6])
def test_groups_hold_every_crop_once_and_bounded_memory(most_pixels):
    sizes = np.random.default_rng(1).integers(1, 60, (40, 2))
    groups = list(groups_of(sizes, most_pixels=most_pixels))
    assert sorted(np.concatenate(groups).tolist()) == list(range(40))
    for group in groups:
        assert len(group) == 1 or len(group) * np.prod(sizes[group].max(axis=0)) <= most_pixels


@pytest.mark.gpu
def test_half_floats_on_cuda_change_a_view_by_one_level_at_most():
    images, boxes, is_flipped = pictures(), np.array(BOXES), np.arange(len(BOXES)) % 2 == 1
    on_cpu = cut_all(images, boxes, is_flipped, size=SIZE)
    on_cuda = cut_all([image.cuda() for image in images], boxes, is_flipped, size=SIZE).cpu()
    assert (on_cuda.int() - on_cpu.int()).abs().max() <= 1
