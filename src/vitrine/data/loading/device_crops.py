"""Crops of many images of different sizes, resized together: two matrix products per group.

One call per image and step would block the training thread with Python's lock; here a batch takes a few dozen calls,
whatever its length. Crops are stored in one padded tensor, each with its own weights for rows and columns: bilinear
with antialias like `resampling.resize`, flipped by the order of the columns.

Shapes: B crops of C channels, at most H x W pixels, views of h x w pixels.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.preparing.preprocess import resampling
from vitrine.runtime.devices import copy_to_device

# Largest difference, in levels of 255, from the CPU's view of the same pixels, which is rounded between both passes.
CUT_TOLERANCE = 1
# Pixels per group with padding: 96 MiB of half floats in three channels.
_MOST_PIXELS = 2**24
# Tensor cores need lines of a multiple of eight numbers.
_ALIGNED = 8


def cut_all(
    images: Sequence[Tensor],
    boxes: NDArray[np.int64],
    is_flipped: NDArray[np.bool_],
    *,
    size: tuple[int, int],
) -> Tensor:
    """Crop uint8 images (C, ., .) to boxes (top, left, height, width), resize and flip: (B, C, *size) uint8."""
    first = images[0]
    views = torch.empty(len(images), first.shape[0], *size, dtype=torch.uint8, device=first.device)
    for group in groups_of(boxes[:, 2:]):
        cut = cut_group([images[number] for number in group], boxes[group], is_flipped[group], size=size)
        views.index_copy_(0, copy_to_device(group, first.device), cut)
    return views


def groups_of(sizes: NDArray[np.int64], *, most_pixels: int = _MOST_PIXELS) -> Iterator[NDArray[np.int64]]:
    """Divide crops of sizes (B, 2) into groups of similar size with at most `most_pixels`, or of one crop."""
    group: list[int] = []
    tallest = widest = 0
    for number in np.argsort(sizes.prod(axis=1), kind="stable"):
        height, width = max(tallest, int(sizes[number, 0])), max(widest, int(sizes[number, 1]))
        if group and (len(group) + 1) * height * width > most_pixels:
            yield np.array(group)
            group, height, width = [], int(sizes[number, 0]), int(sizes[number, 1])
        group.append(int(number))
        tallest, widest = height, width
    if group:
        yield np.array(group)


def cut_group(
    images: Sequence[Tensor],
    boxes: NDArray[np.int64],
    is_flipped: NDArray[np.bool_],
    *,
    size: tuple[int, int],
) -> Tensor:
    """Crop a group of images that fit into memory together: (B, C, *size) uint8."""
    device, B, C, (h, w) = images[0].device, len(images), images[0].shape[0], size
    H, W = (-(-int(side) // _ALIGNED) * _ALIGNED for side in boxes[:, 2:].max(axis=0))
    # Half floats hold 0 to 255 to an eighth of a level, and the products are summed in single precision.
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    crops = torch.zeros(B, H, C, W, dtype=dtype, device=device)
    places, parts = [], []
    for image, planes, (top, left, height, width) in zip(
        images, crops.transpose(1, 2), boxes.tolist(), strict=True
    ):
        places.append(planes[:, :height, :width])
        parts.append(image[:, top : top + height, left : left + width])
    torch._foreach_copy_(places, parts)  # one call: the loop runs without Python's lock
    extents = copy_to_device(np.ascontiguousarray(boxes[:, 2:].T, dtype=np.float32), device)  # (2, B)
    start = torch.zeros_like(extents[0])
    down = resampling(start, extents[0], length=H, count=h).to(dtype)  # (B, h, H)
    across = resampling(start, extents[1], length=W, count=w).to(dtype)  # (B, w, W)
    across = torch.where(copy_to_device(is_flipped, device)[:, None, None], across.flip(1), across)
    rows = (down @ crops.view(B, H, C * W)).view(B, h * C, W)
    views = (rows @ across.transpose(1, 2)).view(B, h, C, w).transpose(1, 2)
    return views.float().round_().clamp_(0, 255).to(torch.uint8)
