"""Masks of objects from the queries of a model: for each picture the best pairs of query and class.

The score of a pair is the probability of the class times the mean probability of the mask's pixels, as in
Mask2Former. Masks are enlarged to the picture a few at a time. Shapes: B pictures, Q queries, K classes, n objects,
P = ceil(n / 8) planes of bits, h x w cells of a mask, H x W pixels of a picture.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrine.data.decoding.annotation import Planes
from vitrine.data.decoding.mask_planes import BITS, chosen_planes
from vitrine.evaluation.objects import BoxPrediction
from vitrine.evaluation.reading_ahead import ReadPicture
from vitrine.models.dense.windows import MOST_NUMBERS

# Best pairs of query and class per picture, and the least score of one.
MOST_PAIRS = 100
LEAST_SCORE = 1e-3


class EnlargedMasks(NamedTuple):
    """The masks of some queries at the size of a picture."""

    planes: Planes
    """(P, H, W)."""
    boxes: Tensor
    """(n, 4); zeros for a mask without a pixel."""
    certainties: Tensor
    """The mean probability of the pixels of a mask (n,)."""


def instances_of(
    masks: Tensor,
    probabilities: Tensor,
    read: ReadPicture,
    *,
    window: tuple[int, int],
    filled: tuple[int, int],
) -> BoxPrediction:
    """Return the objects of one picture from mask logits (Q, h, w) and probabilities (Q, K).

    The picture fills the upper left `filled` pixels of the window.
    """
    scores, pairs = probabilities.flatten().sort(descending=True, stable=True)
    count = min(int((scores > LEAST_SCORE).sum()), MOST_PAIRS)
    scores, pairs = scores[:count], pairs[:count]
    queries, place = torch.unique(pairs // probabilities.shape[1], return_inverse=True)
    enlarged = enlarged_masks(masks[queries], read.size, window=window, filled=filled)
    scores = (scores * enlarged.certainties[place]).cpu()
    order = scores.argsort(descending=True, stable=True)
    order = order[scores[order] > LEAST_SCORE]
    chosen = place.cpu()[order]
    return BoxPrediction(
        index=read.index,
        size=read.size,
        boxes=enlarged.boxes.cpu()[chosen].numpy(),
        labels=(pairs % probabilities.shape[1]).cpu()[order].numpy(),
        scores=scores[order].numpy(),
        planes=chosen_planes(enlarged.planes, chosen.numpy()),
    )


def enlarged_masks(
    logits: Tensor, size: tuple[int, int], *, window: tuple[int, int], filled: tuple[int, int]
) -> EnlargedMasks:
    """Enlarge mask logits (n, h, w) to the window, cut off its padding, enlarge them to the picture, pack them."""
    if not len(logits):
        none = logits.new_zeros(0)
        return EnlargedMasks(np.zeros((0, *size), dtype=np.uint8), logits.new_zeros(0, 4), none)
    step = max(MOST_NUMBERS // (size[0] * size[1]), 1)
    planes = logits.new_zeros(-(-len(logits) // BITS), *size, dtype=torch.uint8)
    boxes, certainties = [], []
    for first in range(0, len(logits), step):
        part = logits[first : first + step].float()
        whole = F.interpolate(part[None], size=window, mode="bilinear", align_corners=False)
        inner = whole[:, :, : filled[0], : filled[1]]
        shown = F.interpolate(inner, size=size, mode="bilinear", align_corners=False)[0]
        is_set = shown > 0
        count = is_set.sum(dim=(1, 2)).clamp_min(1)
        certainties.append(torch.where(is_set, shown.sigmoid(), 0.0).sum(dim=(1, 2)) / count)
        boxes.append(boxes_around(is_set))
        pack_into(planes, is_set, first=first)
    return EnlargedMasks(planes.cpu().numpy(), torch.cat(boxes), torch.cat(certainties))


def pack_into(planes: Tensor, masks: Tensor, *, first: int) -> None:
    """Set masks (m, H, W), the first one of object `first`, in planes of bits (P, H, W) uint8 on their device."""
    for place, mask in enumerate(masks, start=first):
        planes[place // BITS] |= mask.to(torch.uint8) << (place % BITS)


def boxes_around(masks: Tensor) -> Tensor:
    """Return the smallest box around each mask (n, H, W): (n, 4), zeros for a mask without a pixel."""
    sides = []
    for has_any in (masks.any(dim=1), masks.any(dim=2)):  # columns (n, W), rows (n, H)
        places = torch.arange(has_any.shape[1], device=masks.device)
        first = torch.where(has_any, places, has_any.shape[1]).amin(dim=1)
        last = torch.where(has_any, places + 1, 0).amax(dim=1)
        sides.append((torch.minimum(first, last), last))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], dim=1).float()


def found_instances(
    answers: tuple[Tensor, Tensor],
    readable: Sequence[ReadPicture],
    *,
    window: tuple[int, int],
    filled: Sequence[tuple[int, int]],
) -> list[BoxPrediction]:
    """Return the objects of pictures that were read, from masks (B, Q, h, w) and probabilities (B, Q, K)."""
    return [
        instances_of(masks, probabilities, read, window=window, filled=size)
        for masks, probabilities, read, size in zip(*answers, readable, filled, strict=True)
    ]
