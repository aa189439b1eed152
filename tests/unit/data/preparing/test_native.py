"""Pictures at their own aspect ratio: the size by NaFlex's rule, the patches in their order, nothing cut off."""

import math

import numpy as np
import pytest
import torch

from vitrine.checkpoints.libraries import import_installed
from vitrine.data.preparing.native import native_size
from vitrine.data.preparing.native_view import NativeView
from vitrine.data.preparing.preprocess import Preprocess, planes, resize
from vitrine.errors import ConfigError
from vitrine.models.encoder import cut_patches

SHAPES = [(480, 640), (640, 480), (375, 500), (100, 100), (33, 1000), (3000, 40), (16, 16), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("budget", [1, 64, 256, 1024])
def test_the_size_equals_timms_and_fits_the_budget(shape: tuple[int, int], budget: int) -> None:
    naflex = import_installed("timm.data.naflex_transforms")
    rows, columns = native_size(*shape, patch=(16, 16), max_patches=budget)
    assert rows * columns // 256 <= budget and rows % 16 == 0 and columns % 16 == 0
    assert (rows, columns) == naflex.get_image_size_for_seq(shape, patch_size=16, max_seq_len=budget)[1]


def test_an_aspect_ratio_is_kept_up_to_a_patch() -> None:
    rows, columns = native_size(375, 500, patch=(14, 14), max_patches=256)
    assert (rows, columns) == (14 * 13, 14 * 18) or abs(rows / columns - 0.75) < 14 / columns
    assert 0.9 * 256 <= rows * columns / 196 <= 256


def test_patches_are_those_that_a_model_cuts_and_the_first_row_is_the_grid() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (30, 70, 3), dtype=np.uint8)
    native = Preprocess(patch=(8, 8), max_patches=12, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    pixels = native.pixels(picture)
    assert pixels.shape == native.shape == (1, 13, 192) and pixels.dtype == torch.uint8
    size = native_size(30, 70, patch=(8, 8), max_patches=12)
    image = native.with_size(size).normalise(resize(planes(picture, 3), size, "bilinear"))
    pieces, grid = cut_patches(image[None], (8, 8))
    rows = native.normalise(pixels)
    assert rows[0, :2].tolist() == list(grid)
    torch.testing.assert_close(rows[1 : 1 + math.prod(grid)], pieces[0], rtol=0, atol=1e-6)


def test_a_grid_of_more_than_255_patches_a_side_is_written_whole() -> None:
    native = Preprocess(patch=(2, 2), max_patches=400, mean=(0.5,) * 3, std=(0.5,) * 3)
    picture = np.zeros((2, 800, 3), dtype=np.uint8)
    assert native.normalise(native.pixels(picture))[0, :2].tolist() == [1, 400]


def test_a_training_view_keeps_the_aspect_ratio_of_its_crop() -> None:
    view = NativeView(patch=(8, 8), max_patches=32, area=(0.3, 0.5))
    picture = np.random.default_rng(0).integers(0, 256, (60, 120, 3), dtype=np.uint8)
    out = torch.zeros(view.shape, dtype=torch.uint8)
    grids = set()
    for seed in range(4):
        numbers = np.random.default_rng(seed).random(view.num_uniforms)
        view.render(picture, name="photo", numbers=numbers, out=out)
        grids.add((int(out[0, 0, 0]), int(out[0, 0, 2])))
    assert grids == {(4, 8)}
    with pytest.raises(ConfigError, match="inception and none, got 'padded'") as refused:
        NativeView(patch=(8, 8), max_patches=32, crop="padded")
    assert refused.value.option == "max_patches"


def test_the_record_has_the_budget_only_where_there_is_one() -> None:
    native = Preprocess(patch=(8, 8), max_patches=32)
    assert Preprocess.from_json(native.to_json()) == native
    assert "max_patches" not in native.with_size(64).to_json()
    with pytest.raises(ConfigError, match="go together"):
        Preprocess(max_patches=32)
