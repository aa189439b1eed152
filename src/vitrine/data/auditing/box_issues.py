"""Problems of boxes: another size than the picture's, boxes that are empty, outside the picture, or there twice."""

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import Annotation

# Pixels by which a box may reach over the border: tools round differently.
TOLERANCE = 1.0


def box_problems(
    annotation: Annotation, size: tuple[int, int], *, num_classes: int
) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """Return which classes have boxes in a picture (K,), and problems with details; `size` is the picture's."""
    present = np.zeros(num_classes, dtype=np.int64)
    if annotation.size != size:
        words = (
            f"is {size[0]} x {size[1]} pixels, and its labels say {annotation.size[0]} x {annotation.size[1]}"
        )
        return present, [("box size", words)]
    boxes, found = annotation.boxes, list[tuple[str, str]]()
    limits = np.array([size[1], size[0]] * 2, dtype=np.float32)
    inside = np.clip(boxes, 0, limits)
    is_empty = ((inside[:, 2:] - inside[:, :2]) <= 0).any(axis=1)
    is_outside = ~is_empty & (np.abs(boxes - inside) > TOLERANCE).any(axis=1)
    for is_one, problem, words in (
        (is_empty, "empty box", "has no area inside the picture"),
        (is_outside, "box outside", "reaches over the border"),
    ):
        if is_one.any():
            first = int(np.flatnonzero(is_one)[0])
            shown = ", ".join(f"{side:g}" for side in boxes[first].tolist())
            found.append(
                (
                    problem,
                    f"{boxes_text(int(is_one.sum()))}: the first, {shown} (left, top, right, bottom), {words}",
                )
            )
    present[annotation.labels[~is_empty]] = 1
    rows = np.concatenate([boxes, annotation.labels[:, None]], axis=1)
    num_repeated = len(rows) - len(np.unique(rows, axis=0))
    if num_repeated:
        found.append(("repeated box", f"has {boxes_text(num_repeated)} twice, with the same class"))
    return present, found


def boxes_text(count: int) -> str:
    """Return `1 box`, `2 boxes`."""
    return "1 box" if count == 1 else f"{count:,} boxes"
