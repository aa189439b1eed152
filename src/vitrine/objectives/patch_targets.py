"""Targets for hidden patches: colours or pixels, computed from images before normalisation.

Pixels go from 0 to 255 here, whatever mean and deviation the model uses: a colour class is the same colour for every
model.

Shapes: B images of C channels, N patches of P x Q pixels in raster order.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrine.data.loading.order import Rows
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.encoder import cut_patches
from vitrine.objectives.objective import Parts, PartsOf

Target = Literal["mean-color", "downsized-colors", "pixels"]
TARGETS = get_args(Target)
# Appendix B.1.2: three bits per channel, so 512 colours; and a patch downsized to 4 x 4.
LEVELS = 8
DOWNSIZED = 4
# The variance of a patch of one colour is 0; MAE's authors add this before the root.
VARIANCE_EPS = 1e-6


def colour_classes(pixels: Tensor) -> Tensor:
    """Number the 3-bit colour of pixels (..., C) from 0 to 255, the first channel weighing most: (...)."""
    levels = (pixels * (LEVELS / 256)).floor().clamp(0, LEVELS - 1).long()
    # One channel after the other: a tensor of weights would have to be copied to the device.
    classes = levels[..., 0]
    for channel in range(1, pixels.shape[-1]):
        classes = classes * LEVELS + levels[..., channel]
    return classes


def class_colours(classes: Tensor, *, channels: int) -> Tensor:
    """Return the middle of each colour class (...) as pixels (..., C) from 0 to 255."""
    powers = [LEVELS**power for power in reversed(range(channels))]
    levels = torch.stack([classes // power % LEVELS for power in powers], dim=-1)
    return (levels.float() + 0.5) * (256 / LEVELS)


def mean_colours(pixels: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Return the class of every patch's mean colour: images (B, C, height, width) to (B, N)."""
    means = F.avg_pool2d(pixels.float(), patch_size)  # (B, C, GH, GW)
    return colour_classes(means.flatten(2).transpose(1, 2))


def downsized_colours(pixels: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Return the colour classes of every patch downsized to 4 x 4 by averaging: (B, N, 16), in raster order."""
    B, C = pixels.shape[:2]
    patches, grid = cut_patches(pixels.float(), patch_size)
    N = grid[0] * grid[1]
    small = F.adaptive_avg_pool2d(patches.reshape(B * N, C, *patch_size), DOWNSIZED)  # (B N, C, 4, 4)
    return colour_classes(small.flatten(2).transpose(1, 2)).view(B, N, DOWNSIZED**2)


def patch_pixels(pixels: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Return every patch's pixels from -1 to 1: (B, N, C x P x Q)."""
    return cut_patches(pixels.float() / 127.5 - 1, patch_size)[0]


def normalised_patches(patches: Tensor) -> Tensor:
    """Give every patch (B, N, C x P x Q) mean 0 and deviation 1 over its numbers (arXiv:2111.06377, section 3)."""
    mean, variance = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
    return (patches - mean) / (variance + VARIANCE_EPS).sqrt()


def patch_targets(pixels: Tensor, patch_size: tuple[int, int], *, target: Target) -> Tensor:
    """Return the targets of images (B, C, height, width) from 0 to 255: classes (B, N) or (B, N, 16), or pixels."""
    if target == "mean-color":
        return mean_colours(pixels, patch_size)
    if target == "downsized-colors":
        return downsized_colours(pixels, patch_size)
    return patch_pixels(pixels, patch_size)


def target_parts(config: ModelConfig, preprocess: Preprocess, *, target: Target) -> PartsOf:
    """Return the function from pixels to normalised images and the targets of their patches."""
    assert isinstance(config, ViTConfig)

    def parts_of(pixels: Tensor, rows: Rows, seed: int) -> Parts:
        return preprocess.normalise(pixels), patch_targets(pixels, config.token_stride, target=target)

    return parts_of


def num_outputs(target: Target, patch_size: tuple[int, int], *, channels: int) -> int:
    """Return how many numbers the head predicts per patch; refuse patches too small to be downsized."""
    if target == "mean-color":
        return int(LEVELS**channels)
    if target == "pixels":
        return channels * patch_size[0] * patch_size[1]
    if min(patch_size) < DOWNSIZED:
        raise ConfigError(
            f"downsized-colors needs patches of {DOWNSIZED} x {DOWNSIZED} pixels or more, got "
            f"{patch_size[0]} x {patch_size[1]}; use mean-color or pixels"
        )
    return int(DOWNSIZED**2 * LEVELS**channels)
