"""Problems of a mask: another size than the picture's, or nothing in it that counts."""

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import IGNORED, Annotation


def mask_problems(
    annotation: Annotation, size: tuple[int, int], *, num_classes: int
) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """Return which classes are in a mask (K,), and its problems with details; `size` is the picture's."""
    if annotation.size != size:
        words = f"is {size[0]} x {size[1]} pixels, and its mask {annotation.size[0]} x {annotation.size[1]}"
        return np.zeros(num_classes, dtype=np.int64), [("mask size", words)]
    assert annotation.classes is not None
    present = np.bincount(annotation.classes.ravel(), minlength=IGNORED + 1)[:num_classes] > 0
    if not present.any():
        return present.astype(np.int64), [
            ("empty mask", "has only ignored pixels: nothing can be learned from it")
        ]
    return present.astype(np.int64), []
