"""Augmentation of whole batches on their device: RandAugment, 3-Augment, colour jitter, erasing, mixup, cutmix.

Crop and flip happen in the workers (`vitrine.data.preparing.training_view`). Each change to an image depends only on
the seed and on its epoch and position, not on the batch, step or process. Mixup and cutmix mix each image with its
neighbour in the stream (rows 2k and 2k+1): any even share of a batch gives the same pairs.

Shapes: B images, C channels, K classes. Pixels are floats from 0 to 255 until they are normalised.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from vitrine.data.augmenting.randaugment import GEOMETRY, OPERATIONS, affine, apply_operation, identities
from vitrine.data.augmenting.three_augment import three_augment
from vitrine.data.loading.order import Rows
from vitrine.data.randomness import BETA_UNIFORMS, beta_from_uniforms, uniforms
from vitrine.errors import ConfigError
from vitrine.runtime.devices import copy_to_device

Numbers = NDArray[np.float64]
_MOST_OPERATIONS = 4
_PER_OPERATION = 4  # which one, its sign, two for its position
_JITTER, _ERASE = 3, 6
# For larger images a GPU applies each operation only to the images that drew it: all sixteen on all images would cost
# about 10 % of a ViT-B/16 training step at 224 pixels (counted, not measured).
_SMALL_PIXELS = 96 * 96
_NUM_UNIFORMS = _MOST_OPERATIONS * _PER_OPERATION + _JITTER + _ERASE


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Augmentation of a batch; everything is off by default.

    `num_operations` and `magnitude` (0 to 10 is usual, 30 the most) are RandAugment's; `three_augment` is DeiT III's
    3-Augment: each image becomes grey, solarised or blurred (add a `jitter` of 0.3 as there); `jitter` is the
    largest relative change of brightness, contrast and saturation; `erase` is a probability; `mixup` and
    `cutmix` are the alphas of their Beta distributions. With both, each pair gets one or the other, equally often.
    `until` is the fraction of a run after which everything but label smoothing ends: the last steps see images as in
    evaluation, except for crop and flip (arXiv:1909.09148).
    """

    num_operations: int = 0
    magnitude: float = 10.0
    three_augment: bool = False
    jitter: float = 0.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.num_operations <= _MOST_OPERATIONS or not 0 <= self.magnitude <= 30:
            raise ConfigError(
                f"RandAugment takes 0 to {_MOST_OPERATIONS} operations of magnitude 0 to 30, "
                f"got {self.num_operations} and {self.magnitude}"
            )
        if not 0 <= self.erase <= 1 or not 0 <= self.jitter < 1 or not 0 <= self.label_smoothing < 1:
            raise ConfigError(
                f"erase, jitter and label_smoothing must be from 0 to 1, "
                f"got {self.erase}, {self.jitter}, {self.label_smoothing}"
            )
        if self.mixup < 0 or self.cutmix < 0:
            raise ConfigError(f"mixup and cutmix must not be negative, got {self.mixup} and {self.cutmix}")
        if not 0 <= self.until <= 1:
            raise ConfigError(f"until must be a fraction of the run, from 0 to 1, got {self.until}")

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with each other."""
        return self.mixup > 0 or self.cutmix > 0

    def at(self, progress: float) -> "Augment":
        """Return the augmentation after a fraction of the run."""
        if progress < self.until:
            return self
        return replace(
            self, num_operations=0, three_augment=False, jitter=0.0, erase=0.0, mixup=0.0, cutmix=0.0
        )


def augment(
    images: torch.Tensor,
    labels: torch.Tensor,
    rows: Rows,
    *,
    config: Augment,
    num_classes: int,
    seed: int,
    progress: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Augment uint8 images (B, C, H, W) after a fraction of the run: floats from 0 to 255, and soft labels (B, K)."""
    pixels, config = images.float(), config.at(progress)
    if config.three_augment:
        drawn = uniforms(seed, stream="three", epochs=rows.epochs, positions=rows.positions, count=2)
        pixels = three_augment(pixels, copy_to_device(drawn.astype(np.float32), pixels.device))
    if config.num_operations or config.jitter or config.erase:
        numbers = uniforms(
            seed, stream="augment", epochs=rows.epochs, positions=rows.positions, count=_NUM_UNIFORMS
        )
        pixels = rand_augment(
            pixels, numbers, num_operations=config.num_operations, magnitude=config.magnitude
        )
        end = _MOST_OPERATIONS * _PER_OPERATION
        if config.jitter:
            pixels = colour_jitter(pixels, numbers[:, end : end + _JITTER], strength=config.jitter)
        if config.erase:
            pixels = erase(pixels, numbers[:, end + _JITTER :], probability=config.erase)
    targets = soft_labels(labels, num_classes=num_classes, smoothing=config.label_smoothing)
    if config.mixes:
        pixels, targets = mix(pixels, targets, rows, config=config, seed=seed)
    return pixels, targets


def soft_labels(labels: torch.Tensor, *, num_classes: int, smoothing: float = 0.0) -> torch.Tensor:
    """Turn class indices (B,) into rows (B, K) that sum to 1; multi-label rows are unchanged."""
    if labels.ndim == 2:
        return labels.float()
    return F.one_hot(labels, num_classes).float() * (1 - smoothing) + smoothing / num_classes


def rand_augment(
    images: torch.Tensor, numbers: Numbers, *, num_operations: int, magnitude: float
) -> torch.Tensor:
    """Apply `num_operations` random operations to each image (RandAugment, arXiv:1909.13719)."""
    is_small = images.shape[2] * images.shape[3] <= _SMALL_PIXELS
    apply = apply_to_all if images.is_cuda and is_small else apply_to_chosen
    for layer in range(num_operations):
        own = numbers[:, layer * _PER_OPERATION : (layer + 1) * _PER_OPERATION]
        choice = (own[:, 0] * len(OPERATIONS)).astype(np.int64)
        images = apply(images, choice, own, level=magnitude / 10)
    return images


def apply_to_chosen(
    images: torch.Tensor, choice: NDArray[np.int64], own: Numbers, *, level: float
) -> torch.Tensor:
    """Apply each operation to the images that drew it: the least computation."""
    names = list(OPERATIONS)
    order = np.argsort(choice, kind="stable")
    starts = np.searchsorted(choice[order], np.arange(len(names) + 1))
    # One copy to the device, so that the host does not wait.
    columns = np.stack([order, np.where(own[order, 1] < 0.5, -1.0, 1.0), own[order, 2], own[order, 3]])
    drawn = copy_to_device(columns.astype(np.float32), images.device)
    index, signs, places = drawn[0].long(), drawn[1], drawn[2:4].T
    changed = images.clone()
    for name, start, stop in zip(names, starts[:-1], starts[1:], strict=True):
        if start < stop:
            chosen = index[start:stop]
            part = apply_operation(
                name, images[chosen], level=level, signs=signs[start:stop], places=places[start:stop]
            )
            changed.index_copy_(0, chosen, part)
    return changed


def apply_to_all(
    images: torch.Tensor, choice: NDArray[np.int64], own: Numbers, *, level: float
) -> torch.Tensor:
    """Apply every operation to all images and keep the one that each drew: no exchange with the host.

    A GPU does sixteen operations on small images in the time that the host needs to launch each for its own few.
    """
    columns = np.stack([choice, np.where(own[:, 1] < 0.5, -1.0, 1.0), own[:, 2], own[:, 3]])
    drawn = copy_to_device(columns.astype(np.float32), images.device)
    return _every_operation(images.is_cuda)(images, drawn, level)


@functools.cache
def _every_operation(is_compiled: bool) -> Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]:
    return torch.compile(every_operation, dynamic=False) if is_compiled else every_operation


def every_operation(images: torch.Tensor, drawn: torch.Tensor, level: float) -> torch.Tensor:
    """Apply all operations; rows of `drawn` (4, B): which one counts, its sign, two to place it."""
    choice, signs, places = drawn[0], drawn[1], drawn[2:4].T
    geometry, number = identities(signs), {name: index for index, name in enumerate(OPERATIONS)}
    for name, matrices in GEOMETRY.items():
        chosen = (choice == number[name]).view(-1, 1, 1)
        geometry = torch.where(chosen, matrices(signs, level, images.shape[2:]), geometry)
    is_moved = torch.zeros_like(choice, dtype=torch.bool)
    for name in GEOMETRY:
        is_moved = is_moved | (choice == number[name])
    changed = torch.where(is_moved.view(-1, 1, 1, 1), affine(images, geometry), images)
    for name in OPERATIONS:
        if name not in GEOMETRY:
            part = apply_operation(name, images, level=level, signs=signs, places=places)
            changed = torch.where((choice == number[name]).view(-1, 1, 1, 1), part, changed)
    return changed


def colour_jitter(images: torch.Tensor, numbers: Numbers, *, strength: float) -> torch.Tensor:
    """Change brightness, contrast and saturation of each image by up to `strength` either way."""
    factors = copy_to_device((1 + strength * (2 * numbers - 1)).astype(np.float32), images.device)  # (B, 3)
    signs = torch.ones(len(images), device=images.device)
    places = factors[:, :2]
    for column, name in enumerate(("brightness", "contrast", "colour")):
        images = apply_operation(
            name, images, level=0, signs=signs, places=places, factors=factors[:, column]
        )
    return images


def erase(images: torch.Tensor, numbers: Numbers, *, probability: float) -> torch.Tensor:
    """Paint a box of 2 to 33 % of the area in one random shade (random erasing, arXiv:1708.04896)."""
    _, _, height, width = images.shape
    area = (0.02 + (1 / 3 - 0.02) * numbers[:, 1]) * height * width
    ratio = np.exp(np.log(0.3) + (np.log(1 / 0.3) - np.log(0.3)) * numbers[:, 2])
    rows = np.minimum(np.sqrt(area * ratio), height)
    columns = np.minimum(np.sqrt(area / ratio), width)
    boxes = np.stack(
        [numbers[:, 3] * (height - rows), numbers[:, 4] * (width - columns), rows, columns], axis=1
    )
    boxes[numbers[:, 0] >= probability] = 0
    inside = box_mask(copy_to_device(boxes.astype(np.float32), images.device), height, width)  # (B, 1, H, W)
    shade = copy_to_device((255 * numbers[:, 5]).astype(np.float32), images.device).view(-1, 1, 1, 1)
    return torch.where(inside, shade, images)


def mix(
    images: torch.Tensor, targets: torch.Tensor, rows: Rows, *, config: Augment, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mix each image and its target with its neighbour's: mixup (arXiv:1710.09412), cutmix (1905.04899)."""
    if len(images) % 2:
        raise ConfigError(f"mixup and cutmix need an even number of images per process, got {len(images)}")
    # One draw per pair, keyed by its first image.
    numbers = uniforms(
        seed, stream="mix", epochs=rows.epochs[::2], positions=rows.positions[::2], count=BETA_UNIFORMS + 3
    )
    chance = config.cutmix / (config.mixup + config.cutmix) if not (config.mixup and config.cutmix) else 0.5
    is_cut = numbers[:, -3] < chance
    share = np.where(
        is_cut,
        beta_from_uniforms(numbers, config.cutmix) if config.cutmix else 0,
        beta_from_uniforms(numbers, config.mixup) if config.mixup else 0,
    )
    share = np.maximum(share, 1 - share)  # the larger part is the image's own; the order is random anyway
    _, _, height, width = images.shape
    side = np.sqrt(1 - share)
    size = np.stack([np.rint(side * height), np.rint(side * width)], axis=1)
    corner = np.floor(numbers[:, -2:] * (np.array([height, width]) - size + 1))
    boxes = np.concatenate([corner, size], axis=1)
    # The exact fraction of replaced pixels.
    share = np.where(is_cut, 1 - size.prod(axis=1) / (height * width), share)

    def for_rows(values: NDArray[np.generic]) -> torch.Tensor:
        return copy_to_device(np.repeat(values, 2, axis=0), images.device)

    own = for_rows(share.astype(np.float32))
    partner = _swapped(images)
    mixed_targets = own[:, None] * targets + (1 - own)[:, None] * _swapped(targets)
    if not config.cutmix:
        return torch.lerp(partner, images, own.view(-1, 1, 1, 1)), mixed_targets
    inside = box_mask(for_rows(boxes.astype(np.float32)), height, width)
    cut = torch.where(inside, partner, images)
    blend = own.view(-1, 1, 1, 1)
    blended = blend * images + (1 - blend) * partner
    mixed = torch.where(for_rows(is_cut).view(-1, 1, 1, 1), cut, blended)
    return mixed, mixed_targets


def box_mask(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Mark the pixels of each image inside its box (top, left, height, width): (B, 1, H, W)."""
    rows = torch.arange(height, device=boxes.device)[None, :] + 0.5
    columns = torch.arange(width, device=boxes.device)[None, :] + 0.5
    top, left, tall, wide = (boxes[:, side, None] for side in range(4))
    down = (rows > top) & (rows < top + tall)  # (B, H)
    across = (columns > left) & (columns < left + wide)  # (B, W)
    return (down[:, None, :, None]) & (across[:, None, None, :])


def _swapped(values: torch.Tensor) -> torch.Tensor:
    """Exchange rows 2k and 2k + 1."""
    pairs = values.view(len(values) // 2, 2, *values.shape[1:])
    return pairs.flip(1).reshape(values.shape)
