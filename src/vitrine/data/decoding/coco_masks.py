"""Masks of objects in COCO's JSON: polygons, and runs of pixels as lists or as text (pycocotools' rle).

Pixels are counted down the columns. Polygons are drawn as pycocotools draws them, so that areas and overlaps are
equal to the pixel. Shapes: H x W pixels.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import DataError

Mask: TypeAlias = NDArray[np.bool_]
# Polygons are drawn on a grid that is this many times finer.
FINER = 5.0
# Runs as text: letters count from this one; each has five bits of a number, and a sixth set if more follow.
FIRST_LETTER, BITS, MORE, SIGN = 48, 5, 0x20, 0x10
LEAST_NUMBERS = 6
MOST_PIXELS = 2**28


def decode_segmentation(value: Any, size: tuple[int, int], *, where: str) -> Mask:
    """Decode polygons, a list of runs or their text to a mask (H, W)."""
    if size[0] * size[1] > MOST_PIXELS:
        raise DataError(f"{where} is in a picture of {size[0]} x {size[1]} pixels, which is too large")
    if isinstance(value, Mapping):
        runs = value.get("counts")
        if value.get("size") != list(size):
            raise DataError(
                f"{where} has a mask of the size {value.get('size')!r:.40}; its picture has {list(size)}"
            )
        counts = text_runs(runs, where=where) if isinstance(runs, str) else runs
        if not isinstance(counts, list) or not all(isinstance(one, int) and one >= 0 for one in counts):
            raise DataError(f"{where} has counts that are neither a list of lengths nor their text")
        return from_runs(counts, size, where=where)
    if not isinstance(value, list) or not all(is_polygon(one) for one in value):
        raise DataError(f"{where} has a segmentation that is neither polygons nor runs")
    mask = np.zeros(size, dtype=bool)
    for polygon in value:
        mask |= from_runs(polygon_runs(polygon, size), size, where=where)
    return mask


def is_polygon(value: Any) -> bool:
    """Whether a value is a list of at least three corners: x, y, x, y..."""
    return (
        isinstance(value, list)
        and len(value) >= LEAST_NUMBERS
        and len(value) % 2 == 0
        and all(isinstance(one, int | float) and np.isfinite(one) for one in value)
    )


def text_runs(text: str, *, where: str) -> list[int]:
    """Read the lengths of runs from their text; from the fourth on, each is stored less the one two before it."""
    lengths: list[int] = []
    value = shift = 0
    for letter in text:
        code = ord(letter) - FIRST_LETTER
        if not 0 <= code < 2 * MORE:
            raise DataError(f"{where} has the invalid letter {letter!r} in the text of its runs")
        value |= (code & (MORE - 1)) << shift
        shift += BITS
        if code & MORE:
            continue
        if code & SIGN:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = shift = 0
    return lengths


def from_runs(lengths: Sequence[int], size: tuple[int, int], *, where: str) -> Mask:
    """Return the mask of runs that are clear and set in turns, beginning with a clear one."""
    if sum(lengths) != size[0] * size[1]:
        raise DataError(f"{where} has runs of {sum(lengths)} pixels; its picture has {size[0] * size[1]}")
    flags = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return flags.reshape(size[1], size[0]).T


def runs_of(mask: Mask) -> dict[str, Any]:
    """Return a mask (H, W) as COCO's uncompressed runs."""
    flat = mask.T.reshape(-1)
    changes = np.flatnonzero(np.diff(flat)) + 1
    ends = np.concatenate([[0], changes, [len(flat)]])
    lengths = np.diff(ends).tolist()
    return {"size": list(mask.shape), "counts": [0, *lengths] if len(flat) and flat[0] else lengths}


def encode_segmentation(mask: Mask) -> dict[str, Any]:
    """Return a mask (H, W) as COCO's results have it: runs as text."""
    runs = runs_of(mask)
    return {"size": runs["size"], "counts": runs_text(runs["counts"])}


def runs_text(lengths: Sequence[int]) -> str:
    """Write the lengths of runs as text: the inverse of `text_runs`."""
    letters = []
    for place, length in enumerate(lengths):
        value = length - (lengths[place - 2] if place > 2 else 0)
        while True:
            code = value & (MORE - 1)
            value >>= BITS
            is_last = value == (-1 if code & SIGN else 0)
            letters.append(chr(FIRST_LETTER + (code if is_last else code | MORE)))
            if is_last:
                break
    return "".join(letters)


def polygon_runs(polygon: Sequence[float], size: tuple[int, int]) -> list[int]:
    """Return the runs of a polygon: where its border, drawn five times finer, enters and leaves columns."""
    height, width = size
    corners = (FINER * np.asarray(polygon, dtype=np.float64).reshape(-1, 2) + 0.5).astype(np.int64)
    u, v = border_points(corners)
    moved = np.flatnonzero(u[1:] != u[:-1]) + 1
    across = (np.where(u[moved] < u[moved - 1], u[moved], u[moved] - 1) + 0.5) / FINER - 0.5
    down = (np.minimum(v[moved], v[moved - 1]) + 0.5) / FINER - 0.5
    is_column = (np.floor(across) == across) & (across >= 0) & (across <= width - 1)
    down = np.ceil(np.clip(down, 0, height))
    places = (across[is_column] * height + down[is_column]).astype(np.int64)
    differences = np.diff(np.sort(np.concatenate([[0], places, [height * width]])))
    lengths: list[int] = [int(differences[0])]
    rest = iter(differences[1:].tolist())
    for length in rest:
        if length > 0:
            lengths.append(length)
        else:  # entered and left at once: the runs on both sides are one
            lengths[-1] += next(rest, 0)
    return lengths


def border_points(corners: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the points (x, y) of the closed line through corners (N, 2), each edge with both of its ends."""
    parts_x, parts_y = [], []
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        dx, dy = abs(x1 - x0), abs(y1 - y0)
        is_flipped = x0 > x1 if dx >= dy else y0 > y1
        (xs, ys), (xe, ye) = ((x1, y1), (x0, y0)) if is_flipped else ((x0, y0), (x1, y1))
        steps = np.arange(max(dx, dy) + 1)
        steps = steps[::-1] if is_flipped else steps
        if dx >= dy:
            slope = (ye - ys) / dx if dx else 0.0
            parts_x.append(steps + xs)
            parts_y.append((ys + slope * steps + 0.5).astype(np.int64))
        else:
            slope = (xe - xs) / dy
            parts_y.append(steps + ys)
            parts_x.append((xs + slope * steps + 0.5).astype(np.int64))
    return np.concatenate(parts_x), np.concatenate(parts_y)
