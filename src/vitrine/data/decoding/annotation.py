"""The labels of a picture: a class per pixel, or objects with boxes or masks. In pixels of the upright picture.

Shapes: H rows and W columns of pixels, M objects, P = ceil(M / 8) planes of bits.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

DataTask: TypeAlias = Literal["classes", "masks", "boxes", "instances"]
"""The kind of labels in a data set: classes of whole pictures or of pixels, boxes of objects, or masks of objects."""
Map: TypeAlias = NDArray[np.uint8]
Planes: TypeAlias = NDArray[np.uint8]

# The value of pixels that belong to no class and count nowhere.
IGNORED = 255
# Values of a mask that can be classes: one byte, without the value of ignored pixels.
MOST_CLASSES = 255


def no_boxes() -> NDArray[np.float32]:
    """Return the boxes of a picture without objects."""
    return np.zeros((0, 4), dtype=np.float32)


def no_numbers() -> NDArray[np.int64]:
    """Return the classes of a picture without objects."""
    return np.zeros(0, dtype=np.int64)


def no_flags() -> NDArray[np.bool_]:
    """Return the flags of a picture without objects."""
    return np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """The labels of one picture. `size` is its height and width."""

    size: tuple[int, int]
    classes: Map | None = None
    """The class of every pixel (H, W); 255 is ignored. None where there are no masks."""
    boxes: NDArray[np.float32] = field(default_factory=no_boxes)
    """Left, top, right and bottom of each object (M, 4); right and bottom are outside."""
    labels: NDArray[np.int64] = field(default_factory=no_numbers)
    """The class of each object (M,)."""
    is_ignored: NDArray[np.bool_] = field(default_factory=no_flags)
    """Whether an object counts neither as found nor as missed (M,): COCO's crowds, VOC's difficult objects."""
    areas: NDArray[np.float32] | None = None
    """The area of each object in pixels (M,), where it is not that of its box."""
    planes: Planes | None = None
    """The mask of object i as bit i % 8 of plane i // 8 (P, H, W), where objects have masks; they may overlap."""
    is_void: NDArray[np.bool_] | None = None
    """Pixels that count nowhere (H, W), beside masks of objects: VOC's borders. None where all pixels count."""
