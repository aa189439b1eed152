"""One crop for pixels, masks and boxes: they stay on each other, and nothing else is drawn."""

import numpy as np
import pytest
import torch
from masks import scene

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.preparing.mask_view import MaskView
from vitrine.data.preparing.placement import draw_placement
from vitrine.errors import ImageError


@pytest.mark.parametrize("seed", range(6))
def test_pixels_masks_and_boxes_stay_on_each_other(seed: int) -> None:
    """A picture that is white where its mask is 1: in the view they differ only at edges that resizing blurs."""
    numbers = np.random.default_rng(seed).random(4)
    mask = np.zeros((90, 140), dtype=np.uint8)
    mask[20:70, 30:110] = 1
    placed = draw_placement(numbers, 90, 140, size=(64, 64), scale=(0.5, 2.0), flip=True)
    pixels = placed.of_pixels(torch.from_numpy(255 * mask)[None])[0].numpy()
    view = placed.of_map(mask)
    rows, columns = placed.size
    assert pixels.shape == view.shape == (rows, columns)
    assert rows <= 64
    assert columns <= 64
    agree = (pixels > 127) == (view == 1)
    assert agree.mean() > 0.98  # the pixels along four edges are half white
    left, top, right, bottom = placed.of_boxes(np.array([[30, 20, 110, 70]], dtype=np.float32))[0]
    if view.any():
        found = np.argwhere(view)
        # A pixel belongs to the view where its centre does, so that edges differ by at most one.
        np.testing.assert_allclose([top, left], found.min(axis=0), atol=1)
        np.testing.assert_allclose([bottom, right], found.max(axis=0) + 1, atol=1)


def test_a_flip_mirrors_the_crop_and_its_boxes() -> None:
    numbers = np.array([0.5, 0.2, 0.7, 0.9])
    straight = draw_placement(numbers, 60, 80, size=(32, 32), scale=(1, 1), flip=True)
    numbers[3] = 0.1
    flipped = draw_placement(numbers, 60, 80, size=(32, 32), scale=(1, 1), flip=True)
    mask = scene(1, height=60, width=80)[1]
    np.testing.assert_array_equal(flipped.of_map(mask), straight.of_map(mask)[:, ::-1])
    box = np.array([[30, 20, 50, 40]], dtype=np.float32)
    (one,), (other,) = straight.of_boxes(box), flipped.of_boxes(box)
    np.testing.assert_allclose(other, [32 - one[2], one[1], 32 - one[0], one[3]])


def test_boxes_outside_the_crop_become_empty() -> None:
    placed = draw_placement(np.zeros(4), 100, 100, size=(32, 32), scale=(2, 2), flip=False)
    moved = placed.of_boxes(np.array([[80, 80, 90, 90]], dtype=np.float32))[0]
    assert moved[0] == moved[2]
    assert moved[1] == moved[3]


def test_a_small_picture_is_padded_and_its_padding_is_ignored() -> None:
    pixels, classes = scene(0)
    out = torch.zeros(4, 64, 64, dtype=torch.uint8)
    view = MaskView(size=(64, 64), scale=(0.5, 0.5), flip=False)
    annotation = Annotation(size=(48, 64), classes=classes)
    view.render_annotated(pixels, annotation, name="a", numbers=np.zeros(4), out=out)
    assert (out[3, 32:] == 255).all()
    assert (out[:3, 32:] == 128).all()
    assert set(out[3, :32, :43].unique().tolist()) <= {0, 1, 255}


def test_a_mask_of_another_size_is_refused() -> None:
    view = MaskView(size=(64, 64))
    annotation = Annotation(size=(2, 3), classes=np.zeros((2, 3), dtype=np.uint8))
    with pytest.raises(ImageError, match=r"48 x 64.*2 x 3"):
        view.render_annotated(
            scene(0)[0],
            annotation,
            name="a",
            numbers=np.zeros(4),
            out=torch.zeros(4, 64, 64, dtype=torch.uint8),
        )
