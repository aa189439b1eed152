"""Masks of the objects of a picture, a bit per pixel each: object i is bit i % 8 of plane i // 8.

A hundred masks of a 12-megapixel photo take 150 MB like this, an eighth of a byte per pixel each. Shapes: M objects,
P = ceil(M / 8) planes, H x W pixels.
"""

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import Planes

BITS = 8
# Most pixels of all masks of a picture that are unpacked at once: 64 MB in fp32.
MOST_UNPACKED = 2**24


def empty_planes(count: int, size: tuple[int, int]) -> Planes:
    """Return planes for some objects, without a pixel (P, H, W)."""
    return np.zeros((-(-count // BITS), *size), dtype=np.uint8)


def add_mask(planes: Planes, place: int, mask: NDArray[np.bool_]) -> None:
    """Set the mask (H, W) of an object whose bits are clear."""
    planes[place // BITS] |= mask.astype(np.uint8) << np.uint8(place % BITS)


def mask_in(planes: Planes, place: int) -> NDArray[np.bool_]:
    """Return the mask of one object (H, W)."""
    return (planes[place // BITS] >> np.uint8(place % BITS) & 1).astype(bool)


def unpacked(planes: Planes, count: int) -> NDArray[np.uint8]:
    """Return the masks of all objects (M, H, W), of 0 and 1."""
    return np.unpackbits(planes, axis=0, count=count, bitorder="little")


def chosen_planes(planes: Planes, places: NDArray[np.int64]) -> Planes:
    """Return the planes of some objects, in the given order."""
    chosen = empty_planes(len(places), (planes.shape[1], planes.shape[2]))
    for new, place in enumerate(places.tolist()):
        add_mask(chosen, new, mask_in(planes, place))
    return chosen


def mask_areas(planes: Planes, count: int) -> NDArray[np.int64]:
    """Count the pixels of each object (M,)."""
    return np.array([np.count_nonzero(mask_in(planes, place)) for place in range(count)], dtype=np.int64)


def mask_boxes(planes: Planes, count: int) -> NDArray[np.float32]:
    """Return the smallest box around each mask (M, 4), right and bottom outside; zeros for a mask without a pixel."""
    boxes = np.zeros((count, 4), dtype=np.float32)
    for place in range(count):
        mask = mask_in(planes, place)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        if len(rows):
            boxes[place] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes


def plane_overlaps(
    planes: Planes, count: int, others: Planes, num_others: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Count the pixels that masks have in common with others (M, M'), and the pixels of both: (M,), (M',).

    Some rows of the picture are unpacked at a time.
    """
    both = np.zeros((count, num_others))
    own, other = np.zeros(count), np.zeros(num_others)
    height, width = planes.shape[1:]
    step = max(MOST_UNPACKED // max((count + num_others) * width, 1), 1)
    for top in range(0, height, step):
        rows = slice(top, top + step)
        # Sums of ones are exact in fp32 up to 16 million, and no more pixels are unpacked.
        a, b = (
            unpacked(part[:, rows], number)
            .reshape(number, (min(top + step, height) - top) * width)
            .astype(np.float32)
            for part, number in ((planes, count), (others, num_others))
        )
        both += a @ b.T
        own, other = own + a.sum(axis=1), other + b.sum(axis=1)
    return both, own, other
