"""Masks of objects in two PNGs, as VOC has them: the number of the object, and the class, of every pixel."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import IGNORED, Annotation, Map
from vitrine.data.decoding.image_file import open_image
from vitrine.data.decoding.mask_file import NUMBERED, stored_values
from vitrine.data.decoding.mask_planes import add_mask, empty_planes, mask_areas, mask_boxes
from vitrine.errors import ImageError
from vitrine.spelling import printable


def decode_objects(data: bytes, *, name: str) -> NDArray[np.int64]:
    """Return the number of the object of every pixel (H, W): 0 is none, 255 the border of objects."""
    with open_image(data, name=name) as image:
        is_numbered = image.mode in NUMBERED
    if not is_numbered:
        raise ImageError(f"{printable(name)} is in colours; a mask of objects must store their numbers")
    return stored_values(data, name=name)


def objects_of(
    objects: NDArray[np.int64], classes: Map, numbers: Mapping[int, int], *, name: str
) -> Annotation:
    """Return the objects of a picture from its two masks (H, W); `numbers` has the class of each value."""
    if objects.shape != classes.shape:
        raise ImageError(
            f"{printable(name)} has {objects.shape[0]} x {objects.shape[1]} pixels and its mask of classes "
            f"{classes.shape[0]} x {classes.shape[1]}; they must have the same size"
        )
    present = [int(value) for value in np.unique(objects) if value not in (0, IGNORED)]
    size, labels = (objects.shape[0], objects.shape[1]), []
    planes = empty_planes(len(present), size)
    for place, value in enumerate(present):
        mask = objects == value
        values = np.unique(classes[mask])
        if len(values) != 1 or int(values[0]) not in numbers:
            raise ImageError(
                f"{printable(name)}: object {value} lies on the label values {', '.join(map(str, values))} of the "
                "mask of classes; an object must have one class"
            )
        labels.append(numbers[int(values[0])])
        add_mask(planes, place, mask)
    return Annotation(
        size=size,
        boxes=mask_boxes(planes, len(present)),
        labels=np.array(labels, dtype=np.int64),
        is_ignored=np.zeros(len(present), dtype=bool),
        areas=mask_areas(planes, len(present)).astype(np.float32),
        planes=planes,
        is_void=objects == IGNORED,
    )
