"""Objects drawn on pictures: masks in colours of their own, the best on top, names where they can be read."""

import numpy as np

from vitrine.data.decoding.mask_file import voc_palette
from vitrine.data.decoding.mask_planes import add_mask, empty_planes
from vitrine.reports.box_drawing import drawn, numbered, tinted


def two_masks() -> np.ndarray:
    planes = empty_planes(2, (60, 80))
    for place, (top, left) in enumerate(((20, 20), (30, 30))):
        mask = np.zeros((60, 80), dtype=bool)
        mask[top : top + 20, left : left + 20] = True
        add_mask(planes, place, mask)
    return planes


def test_the_best_of_two_masks_is_on_top() -> None:
    numbers = numbered(two_masks(), 2)
    assert (numbers[20:40, 20:40] == 1).all()
    assert numbers[45, 45] == 2
    assert np.bincount(numbers.ravel()).tolist() == [60 * 80 - 700, 400, 300]


def test_pixels_without_an_object_stay_and_borders_have_the_colour_of_their_object() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    numbers = numbered(two_masks(), 2)
    coloured = tinted(pixels, numbers)
    assert (coloured[numbers == 0] == pixels[numbers == 0]).all()
    assert (coloured[20, 20:40] == voc_palette()[1]).all()
    assert (coloured[49, 30:50] == voc_palette()[2]).all()
    inner = coloured[25:35, 25:29].astype(int) - pixels[25:35, 25:29]
    assert (inner[..., 1] <= 0).all()  # the first colour is red


def test_names_are_larger_where_the_picture_is_shown_smaller() -> None:
    pixels = np.zeros((60, 80, 3), dtype=np.uint8)
    given = (np.array([[20, 20, 40, 40]], dtype=np.float32), np.array([0]))
    near, far = (drawn(pixels, *given, classes=("cat",), shown_at=side) for side in (80, 20))
    assert (far.any(axis=2)).sum() > 2 * (near.any(axis=2)).sum()


def test_masks_have_names_and_no_rectangle() -> None:
    pixels = np.zeros((60, 80, 3), dtype=np.uint8)
    boxes = np.array([[20, 20, 40, 40], [30, 30, 50, 50]], dtype=np.float32)
    with_masks = drawn(pixels, boxes, np.array([0, 0]), classes=("cat",), planes=two_masks())
    assert not with_masks[48, 20:29].any()  # a rectangle around both would be there, and masks are not
    assert with_masks[20, 20].any()
