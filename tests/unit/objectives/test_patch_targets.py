"""Targets of hidden patches against loops over single pixels."""

import pytest
import torch

from vitrine.errors import ConfigError
from vitrine.objectives.patch_targets import (
    class_colours,
    colour_classes,
    downsized_colours,
    mean_colours,
    normalised_patches,
    num_outputs,
    patch_pixels,
)


def pictures(height: int = 16, width: int = 24) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (2, 3, height, width), generator=generator, dtype=torch.uint8)


def colour(red: float, green: float, blue: float) -> int:
    """Write the top three bits of each channel one after the other."""
    return (int(red) >> 5) << 6 | (int(green) >> 5) << 3 | int(blue) >> 5


def mean_of(block: torch.Tensor) -> list[float]:
    return [sum(channel.flatten().tolist()) / channel.numel() for channel in block]


def test_the_mean_colour_is_the_top_three_bits_of_each_channels_mean() -> None:
    pixels = pictures()
    found = mean_colours(pixels, (8, 8))
    assert found.shape == (2, 6)
    for image in range(2):
        for row in range(2):
            for column in range(3):
                block = pixels[image, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
                assert found[image, 3 * row + column] == colour(*mean_of(block))


def test_the_darkest_and_the_brightest_colour_are_the_first_and_the_last_class() -> None:
    assert colour_classes(torch.tensor([0.0, 0.0, 0.0])) == 0
    assert colour_classes(torch.tensor([255.0, 255.0, 255.0])) == 511
    assert colour_classes(torch.tensor([31.9, 32.0, 255.0])) == 0 * 64 + 1 * 8 + 7


def test_every_class_is_that_of_its_own_colour() -> None:
    classes = torch.arange(512)
    assert torch.equal(colour_classes(class_colours(classes, channels=3)), classes)


def test_downsized_colours_are_those_of_four_by_four_means() -> None:
    pixels = pictures()
    found = downsized_colours(pixels, (8, 8))
    assert found.shape == (2, 6, 16)
    for patch in range(6):
        top, left = 8 * (patch // 3), 8 * (patch % 3)
        for cell in range(16):
            down, right = top + 2 * (cell // 4), left + 2 * (cell % 4)
            block = pixels[1, :, down : down + 2, right : right + 2]
            assert found[1, patch, cell] == colour(*mean_of(block))


def test_whole_patches_go_from_minus_one_to_one_in_the_order_of_the_patch_kernel() -> None:
    pixels = pictures()
    pixels[0, :, 0, :2] = torch.tensor([0, 255], dtype=torch.uint8)
    found = patch_pixels(pixels, (8, 8))
    assert found.shape == (2, 6, 3 * 8 * 8) and found[0, 0, :2].tolist() == [-1.0, 1.0]
    block = pixels[1, :, 8:16, 16:24].flatten().double() / 127.5 - 1  # channel, row, column
    assert torch.allclose(found[1, 5].double(), block, atol=1e-6)


def test_normalised_patches_have_mean_zero_and_deviation_one_and_a_flat_patch_is_zero() -> None:
    found = normalised_patches(patch_pixels(pictures(), (8, 8)))
    assert found.mean(dim=2).abs().max() < 1e-5  # rounding of 192 float32 numbers
    assert (found.std(dim=2) - 1).abs().max() < 1e-4  # and the 1e-6 under the root
    flat = normalised_patches(torch.full((1, 2, 12), 0.25))
    assert torch.equal(flat, torch.zeros(1, 2, 12))


def test_patches_too_small_to_be_downsized_are_refused() -> None:
    assert num_outputs("downsized-colors", (4, 4), channels=3) == 16 * 512
    with pytest.raises(ConfigError, match=r"^downsized-colors .*2 x 2; .*mean-color"):
        num_outputs("downsized-colors", (2, 2), channels=3)
