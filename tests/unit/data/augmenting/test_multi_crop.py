"""Views cut on the device: the same as cutting and resizing one by one, and a pure function of seed and position."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.augmenting.multi_crop import (
    GREY_CHANCE,
    JITTER_CHANCE,
    MultiCrop,
    blurred,
    boxes_of,
    colour_matrix,
    cut,
    draw,
    multi_crop,
    recoloured,
    resampling,
)
from vitrine.data.loading.order import Rows
from vitrine.errors import ConfigError

CPU = torch.device("cpu")
NO_BLUR = 1e-3


def rows(positions: list[int], epoch: int = 0) -> Rows:
    index = np.array(positions, dtype=np.int64)
    return Rows(0, index, np.full_like(index, epoch), index)


def pictures(count: int = 4, size: tuple[int, int] = (32, 40), seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, *size, generator=generator) * 255


def test_a_view_is_the_crop_resized_with_antialias_and_flipped() -> None:
    """Boxes of whole pixels, so that torch's own resampling of the crop is the reference."""
    images = pictures(2)
    boxes = torch.tensor([[[3.0, 5, 20, 30], [0, 0, 32, 40]], [[8, 1, 9, 12], [10, 20, 22, 20]]])
    is_flipped = torch.tensor([[False, True], [True, False]])
    found = cut(images, boxes, is_flipped, torch.full((2, 2), NO_BLUR), size=(16, 12))
    for image in range(2):
        for view in range(2):
            top, left, height, width = (int(value) for value in boxes[image, view])
            piece = images[image : image + 1, :, top : top + height, left : left + width]
            wanted = F.interpolate(piece, size=(16, 12), mode="bilinear", antialias=True)[0]
            wanted = wanted.flip(-1) if is_flipped[image, view] else wanted
            # Float32 sums of some ten weights on values up to 255.
            assert torch.allclose(found[image, view], wanted, atol=1e-3)


def test_weights_of_any_box_sum_to_one_and_take_nothing_from_outside() -> None:
    start, extent = torch.tensor([2.3, 0.0, 7.9]), torch.tensor([4.1, 9.9, 2.0])
    weights = resampling(start, extent, length=10, count=5)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(3, 5), atol=1e-6)
    assert not weights[0, :, :2].any() and not weights[0, :, 7:].any()
    assert not weights[2, :, :7].any()


def test_blur_is_a_gaussian_along_the_line_and_none_leaves_it_alone() -> None:
    line = torch.eye(9)[None, None]
    assert torch.equal(blurred(line, torch.tensor([[NO_BLUR]])), line)
    found = blurred(line, torch.tensor([[1.5]]))[0, 0, 4]
    wanted = torch.exp(-(torch.arange(9) - 4.0).square() / (2 * 1.5**2))
    assert torch.allclose(found, wanted / wanted.sum(), atol=1e-6)


def test_boxes_lie_inside_the_image_with_the_wanted_areas() -> None:
    numbers = draw(rows(list(range(500))), num_views=4, seed=1, device=CPU)[..., 1:5]
    boxes = boxes_of(numbers, (32, 32), area=(0.2, 0.5))
    top, left, tall, wide = boxes.unbind(-1)
    assert (boxes[..., :2] >= 0).all() and (top + tall <= 32.001).all() and (left + wide <= 32.001).all()
    share = tall * wide / 32**2
    assert share.min() >= 0.19 and share.max() <= 0.501
    assert abs(share.mean() - 0.35) < 0.01  # 2,000 draws of a deviation of .09: four errors of the mean


def test_numbers_are_uniform_and_depend_on_seed_epoch_position_and_view_alone() -> None:
    one = draw(rows([5, 6, 7]), num_views=3, seed=1, device=CPU)
    assert torch.equal(one[1:2], draw(rows([6]), num_views=3, seed=1, device=CPU))
    assert torch.equal(one[:, :2], draw(rows([5, 6, 7]), num_views=2, seed=1, device=CPU))
    for other in (
        draw(rows([5], 1), num_views=3, seed=1, device=CPU),
        draw(rows([5]), num_views=3, seed=2, device=CPU),
    ):
        assert not (one[:1] == other).any()
    many = draw(rows(list(range(4000))), num_views=2, seed=0, device=CPU)
    assert many.min() >= 0 and many.max() < 1
    # Mean and correlation of 8,000 draws each: four standard errors.
    assert (many.mean(dim=(0, 1)) - 0.5).abs().max() < 4 * 0.289 / 8000**0.5
    together = torch.corrcoef(many.flatten(1).T) - torch.eye(many[0].numel())
    assert together.abs().max() < 4.5 / 4000**0.5


def test_views_do_not_depend_on_the_batch_that_an_image_comes_in() -> None:
    images, config = pictures(4, (32, 32)), MultiCrop(num_local=3)
    options = {"config": config, "size": (32, 32), "local_size": (16, 16), "seed": 0}
    large, small = multi_crop(images, rows([0, 1, 2, 3]), **options)
    assert large.shape == (4, 2, 3, 32, 32) and small.shape == (4, 3, 3, 16, 16)
    assert large.min() >= 0 and large.max() <= 255.01
    parts = [
        multi_crop(images[half], rows(index), **options)
        for half, index in ((slice(2), [0, 1]), (slice(2, 4), [2, 3]))
    ]
    for whole, halves in zip((large, small), zip(*parts, strict=True), strict=True):
        assert torch.allclose(whole, torch.cat(halves), atol=1e-3)  # another batch, other sums of float32
    none, _ = multi_crop(images, rows([0, 1, 2, 3]), **{**options, "config": MultiCrop(num_local=0)})
    assert torch.allclose(none, large, atol=1e-3)


def test_colours_turn_round_grey_and_grey_has_none() -> None:
    grey = torch.full((1, 3, 2, 2), 90.0)
    turned = colour_matrix(torch.tensor([1.0]), torch.tensor([1.0])) @ grey.flatten(2)
    assert torch.allclose(turned, grey.flatten(2), atol=1e-3)
    whole = colour_matrix(torch.tensor([1.0]), torch.tensor([2 * torch.pi]))
    assert torch.allclose(whole, torch.eye(3)[None], atol=1e-5)
    views = pictures(2, (8, 8))
    numbers = torch.full((2, 6), 0.99)  # no jitter
    numbers[1, 5] = GREY_CHANCE / 2
    found = recoloured(views, numbers, strength=1.0)
    assert torch.allclose(found[0], views[0], atol=1e-2)
    assert (found[1].amax(dim=0) - found[1].amin(dim=0)).max() < 0.01


def test_the_changes_happen_as_often_as_they_should() -> None:
    views = pictures(1, (4, 4)).expand(3000, 3, 4, 4)
    numbers = draw(rows(list(range(3000))), num_views=1, seed=0, device=CPU)[:, 0, 7:13]
    found = recoloured(views, numbers, strength=1.0)
    is_grey = (found.amax(dim=1) - found.amin(dim=1)).flatten(1).amax(dim=1) < 0.01
    is_same = torch.isclose(found, views, atol=0.01).flatten(1).all(dim=1)
    for count, share in (
        (int(is_grey.sum()), GREY_CHANCE),
        (int(is_same.sum()), (1 - JITTER_CHANCE) * (1 - GREY_CHANCE)),
    ):
        assert abs(count - 3000 * share) < 4 * (3000 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_local": -1}, "num_local .*got -1"),
        ({"local_area": (0.5, 0.2)}, "local_area .*two shares"),
        ({"colours": 3.0}, "colours .*2.5, got 3"),
        ({"local_size": 0}, "local_size .*null, got 0"),
    ],
)
def test_nonsense_is_refused(option: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultiCrop(**option)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_views_are_cut_without_waiting_for_the_device() -> None:
    device = torch.device("cuda")
    images, config = pictures(8, (32, 32)).to(device), MultiCrop(num_local=2)
    options = {"config": config, "size": (32, 32), "local_size": (16, 16), "seed": 0}
    multi_crop(images, rows(list(range(8))), **options)  # constants and libraries come with the first call
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = multi_crop(images, rows(list(range(8))), **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = multi_crop(images.cpu(), rows(list(range(8))), **options)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.cpu(), other, atol=0.05)  # TF32 is off; sums differ in their order
