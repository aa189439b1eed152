"""Several random views per image, cropped on its device (multi-crop, arXiv:2006.09882; augmentation as in DINO).

A view is a crop, resized with antialias, flipped and blurred: one matrix for the rows and one for the columns of the
image, so that a whole batch takes two matrix products without synchronising with the host. Colours change afterwards.
A view depends only on seed, epoch and position of its image, not on the batch.

Shapes: B images of C channels, H x W pixels, V views of h x w pixels.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrine.data.augmenting.randaugment import grey_of
from vitrine.data.loading.order import Rows
from vitrine.data.preparing.preprocess import resampling
from vitrine.data.randomness import random_words
from vitrine.errors import ConfigError
from vitrine.runtime.devices import copy_to_device, device_constant

# DINO (arXiv:2104.14294), appendix: probabilities and strengths of its augmentation.
JITTER_CHANCE, BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.8, 0.4, 0.4, 0.2, 0.1
GREY_CHANCE, SOLARISE_CHANCE = 0.2, 0.2
BLUR_CHANCES = (1.0, 0.1, 0.5)  # of the first global view, the second, and local ones
# Standard deviations in pixels of a 224-pixel image; scaled down for smaller ones, so that 32 pixels stay sharp.
BLUR_DEVIATIONS, BLUR_SIDE = (0.1, 2.0), 224
ASPECT = (3 / 4, 4 / 3)
_NO_BLUR = 1e-3
_NUM_NUMBERS = 14
# SplitMix64 (Steele et al., 2014), its constants as signed numbers of 64 bits.
_GAMMA, _FIRST, _SECOND = (
    number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# Rotation of colours round grey happens in YIQ (NTSC).
_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_TO_YIQ, _TO_RGB = (tuple(matrix.flatten().tolist()) for matrix in (_YIQ, np.linalg.inv(_YIQ)))


@dataclass(frozen=True, kw_only=True)
class MultiCrop:
    """How many views there are, how large they are and how strongly they differ; the defaults are DINO's."""

    num_local: int = 8
    """Small views beside the two global ones, which have the model's size."""
    local_size: int | None = None
    """Side of a small view in pixels; None takes half the model's, in whole patches."""
    source_size: int | None = None
    """Side of the picture that views are cut from; None takes the model's. Twice as large keeps small views sharp."""
    global_area: tuple[float, float] = (0.4, 1.0)
    local_area: tuple[float, float] = (0.05, 0.4)
    colours: float = 1.0
    """Strength of the colour changes relative to DINO's; 0 leaves colours as they are."""
    flips: bool = True

    def __post_init__(self) -> None:
        if self.num_local < 0:
            raise ConfigError(f"num_local must be 0 or more, got {self.num_local}")
        for name in ("local_size", "source_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, or null, got {value}")
        for name in ("global_area", "local_area"):
            area = getattr(self, name)
            if not (len(area) == 2 and 0 < area[0] <= area[1] <= 1):
                raise ConfigError(f"{name} must be two shares of the image, the smaller first, got {area}")
        # Above 2.5 a factor of brightness could be negative.
        if not 0 <= self.colours <= 1 / BRIGHTNESS:
            raise ConfigError(f"colours must be from 0 to {1 / BRIGHTNESS:g}, got {self.colours}")


def multi_crop(
    pixels: Tensor,
    rows: Rows,
    *,
    config: MultiCrop,
    size: tuple[int, int],
    local_size: tuple[int, int],
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Crop images (B, C, H, W) from 0 to 255 into views: (B, 2, C, *size) and (B, V, C, *local_size)."""
    numbers = draw(rows, num_views=2 + config.num_local, seed=seed, device=pixels.device)
    large = views_of(
        pixels, numbers[:, :2], config=config, size=size, area=config.global_area, blur_side=size[0]
    )
    small = views_of(
        pixels,
        numbers[:, 2:],
        config=config,
        size=local_size,
        area=config.local_area,
        blur_side=size[0],
        is_local=True,
    )
    return large, small


def small_view_size(grid: tuple[int, int], stride: tuple[int, int], *, wanted: int | None) -> tuple[int, int]:
    """Return the size of small views: the wanted one if patches tile it; by default half the grid, rounded up."""
    if wanted is None:
        down, across = ((count + 1) // 2 * step for count, step in zip(grid, stride, strict=True))
        return down, across
    if any(wanted % step for step in stride):
        step = math.lcm(*stride)
        below = max(wanted // step, 1) * step
        raise ConfigError(
            f"multi_crop.local_size must be whole patches of {step} px, got {wanted}; nearest that fit: "
            f"{below} and {below + step}"
        )
    return wanted, wanted


def draw(rows: Rows, *, num_views: int, seed: int, device: torch.device) -> Tensor:
    """Draw numbers in [0, 1) for every view: (B, V, `_NUM_NUMBERS`), the same on any device.

    The host draws one word of 64 bits per image; the device derives the others by integer arithmetic.
    """
    words = random_words(seed, stream="crops", epochs=rows.epochs, positions=rows.positions, count=2)
    keys = copy_to_device(np.ascontiguousarray(words).view(np.int64)[:, 0], device)
    counters = torch.arange(1, num_views * _NUM_NUMBERS + 1, device=device)
    mixed = keys[:, None] + counters * _GAMMA
    mixed = (mixed ^ _shifted(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shifted(mixed, 27)) * _SECOND
    upper = _shifted(mixed ^ _shifted(mixed, 31), 40)  # 24 bits: as many as a float32 holds
    return (upper.float() * 2.0**-24).view(len(keys), num_views, _NUM_NUMBERS)


def _shifted(words: Tensor, count: int) -> Tensor:
    """Shift 64-bit words right, filling with zeros instead of the sign."""
    return (words >> count) & ((1 << (64 - count)) - 1)


def views_of(
    pixels: Tensor,
    numbers: Tensor,
    *,
    config: MultiCrop,
    size: tuple[int, int],
    area: tuple[float, float],
    blur_side: int,
    is_local: bool = False,
) -> Tensor:
    """Crop one view per row of numbers (B, V, ...): (B, V, C, *size)."""
    B, V = numbers.shape[:2]
    if not V:
        return pixels.new_zeros(B, 0, pixels.shape[1], *size)
    boxes = boxes_of(numbers[..., 1:5], (pixels.shape[2], pixels.shape[3]), area=area)
    chances = (BLUR_CHANCES[2],) * V if is_local else BLUR_CHANCES[:2]
    is_blurred = torch.stack([numbers[:, view, 5] < chance for view, chance in enumerate(chances)], dim=1)
    low, high = (deviation * blur_side / BLUR_SIDE for deviation in BLUR_DEVIATIONS)
    deviation = torch.where(is_blurred, low + (high - low) * numbers[..., 6], _NO_BLUR)
    is_flipped = (numbers[..., 0] < 0.5) & config.flips
    views = cut(pixels, boxes, is_flipped, deviation, size=size)
    if config.colours:
        views = recoloured(views.flatten(0, 1), numbers[..., 7:13].flatten(0, 1), strength=config.colours)
        views = views.view(B, V, -1, *size)
        if not is_local:
            is_solar = (numbers[:, 1, 13] < SOLARISE_CHANCE)[:, None, None, None] & (views[:, 1] >= 128)
            views[:, 1] = torch.where(is_solar, 255 - views[:, 1], views[:, 1])
    return views


def boxes_of(place: Tensor, size: tuple[int, int], *, area: tuple[float, float]) -> Tensor:
    """Turn numbers (B, V, 4) into boxes (top, left, height, width) in pixels of an image of `size`: (B, V, 4)."""
    H, W = size
    share = area[0] + (area[1] - area[0]) * place[..., 0]
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    ratio = torch.exp((low + (high - low) * place[..., 1]) / 2)  # square root of width over height
    side = (share * (H * W)).sqrt()
    tall, wide = (side / ratio).clamp(max=H), (side * ratio).clamp(max=W)
    return torch.stack([place[..., 2] * (H - tall), place[..., 3] * (W - wide), tall, wide], dim=-1)


def cut(
    pixels: Tensor, boxes: Tensor, is_flipped: Tensor, deviation: Tensor, *, size: tuple[int, int]
) -> Tensor:
    """Crop to boxes (B, V, 4), resize, flip and blur: (B, V, C, *size)."""
    B, C, H, W = pixels.shape
    V, (h, w) = boxes.shape[1], size
    down = blurred(resampling(boxes[..., 0], boxes[..., 2], length=H, count=h), deviation)  # (B, V, h, H)
    across = resampling(boxes[..., 1], boxes[..., 3], length=W, count=w)
    across = torch.where(is_flipped[..., None, None], across.flip(-2), across)
    across = blurred(across, deviation)  # (B, V, w, W)
    # All views of an image in one product, without a copy of the image per view.
    product = down.reshape(B, V * h, H) @ pixels.permute(0, 2, 1, 3).reshape(B, H, C * W)
    product = product.view(B, V, h, C, W).transpose(2, 3).reshape(B * V, C * h, W)
    return (product @ across.flatten(0, 1).transpose(1, 2)).view(B, V, C, h, w)


def blurred(weights: Tensor, deviation: Tensor) -> Tensor:
    """Blur resized lines, given as weights (B, V, n, length), by Gaussians with a standard deviation (B, V) each."""
    place = torch.arange(weights.shape[-2], device=weights.device)
    distance = (place[:, None] - place) / deviation[..., None, None]
    kernel = torch.exp(-distance.square() / 2)
    return (kernel / kernel.sum(dim=-1, keepdim=True)) @ weights


def recoloured(views: Tensor, numbers: Tensor, *, strength: float) -> Tensor:
    """Change brightness, contrast, saturation and hue of views (M, C, h, w), or turn them grey."""
    signs = 2 * numbers[:, 1:5] - 1
    signs = torch.where(numbers[:, :1] < JITTER_CHANCE, signs, 0) * strength
    brightness, contrast = (1 + BRIGHTNESS * signs[:, 0]), (1 + CONTRAST * signs[:, 1])
    views = (views * brightness.view(-1, 1, 1, 1)).clamp(0, 255)
    middle = grey_of(views).mean(dim=(2, 3), keepdim=True)
    views = (middle + (views - middle) * contrast.view(-1, 1, 1, 1)).clamp(0, 255)
    if views.shape[1] != len(_YIQ):
        return views
    saturation = torch.where(numbers[:, 5] < GREY_CHANCE, 0, 1 + SATURATION * signs[:, 2])
    turned = colour_matrix(saturation, 2 * math.pi * HUE * signs[:, 3])  # (M, 3, 3)
    return (turned @ views.flatten(2)).view_as(views).clamp(0, 255)


def colour_matrix(saturation: Tensor, angle: Tensor) -> Tensor:
    """Return the matrices (M, 3, 3) on RGB that scale the distance from grey and turn the hue."""
    to_yiq, to_rgb = (device_constant(matrix, angle.device).view(3, 3) for matrix in (_TO_YIQ, _TO_RGB))
    cos, sin, one, zero = (
        saturation * angle.cos(),
        saturation * angle.sin(),
        torch.ones_like(angle),
        angle * 0,
    )
    turn = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=1).view(-1, 3, 3)
    return to_rgb @ turn @ to_yiq
