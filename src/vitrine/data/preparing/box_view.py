"""Crops of a picture and of its boxes together, in the workers: to (C + P, H, W) uint8.

The last P planes hold the boxes as bytes, so that they travel with the pixels of their picture, through threads,
processes and to the device alike; `boxes_in` reads them there. Shapes: B pictures, M objects at most.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.annotated_crop import AnnotatedCrop
from vitrine.data.preparing.placement import Placement
from vitrine.data.preparing.training_view import Numbers
from vitrine.errors import ImageError, TryOption
from vitrine.spelling import printable

# Left, top, right, bottom, class, and whether the object counts: 0 for none, 1 for an object, 2 for an ignored one.
FIELDS = 6
OBJECT, IGNORED_OBJECT = 1, 2
FLOAT_BYTES = 4
# An object of which less than this share is in the crop is ignored: the rest may be unrecognisable.
LEAST_VISIBLE = 0.25
# Boxes of less than a pixel in the crop are too small to be found.
LEAST_SIDE = 1.0


class BoxBatch(NamedTuple):
    """The objects of a batch, with empty places after the last of each picture."""

    boxes: Tensor
    """Left, top, right, bottom in pixels of the crop (B, M, 4)."""
    labels: Tensor
    """Classes (B, M) int64."""
    is_object: Tensor
    """Objects to find (B, M)."""
    is_ignored: Tensor
    """Objects that need not be found (B, M)."""


@dataclass(frozen=True, kw_only=True)
class BoxView(AnnotatedCrop):
    """A random scale, crop and flip of a picture with its boxes. Padding is grey."""

    most_objects: int = 100

    @property
    def num_planes(self) -> int:
        """Planes that hold the boxes."""
        return math.ceil(self.most_objects * FIELDS * FLOAT_BYTES / (self.size[0] * self.size[1]))

    @property
    def channels(self) -> int:
        """Planes of the result: those of the picture, and those of the boxes."""
        return self.image_channels + self.num_planes

    def render_annotated(
        self,
        data: bytes | Pixels,
        annotation: Annotation,
        *,
        name: str,
        numbers: Numbers | None,
        out: torch.Tensor,
    ) -> None:
        """Decode a picture and write its crop and the boxes in it into `out`, (C + P, H, W) uint8."""
        placed = self.place(data, annotation, name=name, numbers=numbers, out=out)
        table = rows_of(annotation, placed)
        require_places(len(table), self.most_objects, name=name)
        stored = np.zeros((self.num_planes, *self.size), dtype=np.uint8)
        stored.reshape(-1)[: table.nbytes] = np.frombuffer(table.tobytes(), dtype=np.uint8)
        out[self.image_channels :] = torch.from_numpy(stored)


def require_places(count: int, most_objects: int, *, name: str) -> None:
    """Refuse a picture with more objects than a view has places for."""
    if count > most_objects:
        raise ImageError(
            f"{printable(name)} has {count} objects, more than objective.most_objects={most_objects}",
            advice=[TryOption("set", "to train on all of them", f"objective.most_objects={count}")],
        )


def rows_of(annotation: Annotation, placed: Placement) -> np.ndarray:
    """Return the objects of a picture that are in a crop, one row each (m, 6) float32."""
    moved = placed.of_boxes(annotation.boxes)
    (_, _, height, width), (rows, columns) = placed.box, placed.size
    before = areas(annotation.boxes) * (rows / height) * (columns / width)
    is_inside = ((moved[:, 2:] - moved[:, :2]) >= LEAST_SIDE).all(axis=1)
    is_ignored = annotation.is_ignored | (areas(moved) < LEAST_VISIBLE * before)
    kinds = np.where(is_ignored, IGNORED_OBJECT, OBJECT)
    table = np.concatenate([moved, annotation.labels[:, None], kinds[:, None]], axis=1)
    return table[is_inside].astype(np.float32)


def areas(boxes: np.ndarray) -> np.ndarray:
    """Return the areas of boxes (M, 4); 0 for empty ones."""
    sides = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None)
    result: np.ndarray = sides[:, 0] * sides[:, 1]
    return result


def boxes_in(images: Tensor, *, image_channels: int, most_objects: int) -> BoxBatch:
    """Read the boxes of a batch of views (B, C + P, H, W) uint8, on its device and without waiting for it."""
    stored = images[:, image_channels:].flatten(1)[:, : most_objects * FIELDS * FLOAT_BYTES]
    table = stored.contiguous().view(torch.float32).view(len(images), most_objects, FIELDS)
    return BoxBatch(
        boxes=table[..., :4],
        labels=table[..., 4].long(),
        is_object=table[..., 5] == OBJECT,
        is_ignored=table[..., 5] == IGNORED_OBJECT,
    )
