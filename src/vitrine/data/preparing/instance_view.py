"""Crops of a picture and of the masks of its objects together, in the workers: to (C + L + P + 1, H, W) uint8.

Behind the picture are planes with the classes of the objects as bytes, planes with a bit per object, and one plane of
pixels that count nowhere. They travel with the pixels of their picture, through threads, processes and to the device;
`instances_in` reads them there. Crowds are not learned. Shapes: B pictures, M objects at most, P = ceil(M / 8) planes
of bits, L planes of classes.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.decoding.mask_planes import BITS, chosen_planes, mask_areas
from vitrine.data.preparing.annotated_crop import AnnotatedCrop
from vitrine.data.preparing.box_view import require_places
from vitrine.data.preparing.training_view import Numbers

# Bytes of a class; 0 stands for no object, so that classes are stored plus one.
LABEL_BYTES = 4


class InstanceBatch(NamedTuple):
    """The objects of a batch."""

    labels: Tensor
    """Classes (B, M) int64; -1 where there is no object."""
    planes: Tensor
    """The mask of object i as bit i % 8 of plane i // 8 (B, P, H, W) uint8."""
    is_known: Tensor
    """Pixels that count (B, H, W)."""


@dataclass(frozen=True, kw_only=True)
class InstanceView(AnnotatedCrop):
    """A random scale, crop and flip of a picture with the masks of its objects. Padding is grey, and counts."""

    scale: tuple[float, float] = (0.5, 1.5)
    most_objects: int = 100

    @property
    def num_label_planes(self) -> int:
        """Planes that hold the classes."""
        return math.ceil(self.most_objects * LABEL_BYTES / (self.size[0] * self.size[1]))

    @property
    def channels(self) -> int:
        """Planes of the result."""
        return self.image_channels + self.num_label_planes + math.ceil(self.most_objects / BITS) + 1

    def render_annotated(
        self,
        data: bytes | Pixels,
        annotation: Annotation,
        *,
        name: str,
        numbers: Numbers | None,
        out: torch.Tensor,
    ) -> None:
        """Decode a picture and write its crop and the masks of the objects in it into `out`, uint8."""
        assert annotation.planes is not None
        placed = self.place(data, annotation, name=name, numbers=numbers, out=out)
        rows, columns = placed.size
        moved = placed.of_map(annotation.planes)
        is_learned = (mask_areas(moved, len(annotation.labels)) > 0) & ~annotation.is_ignored
        learned = np.flatnonzero(is_learned)
        require_places(len(learned), self.most_objects, name=name)
        labels, masks = self.image_channels, self.image_channels + self.num_label_planes
        out[labels:].zero_()
        stored = (annotation.labels[learned] + 1).astype(np.int32)
        out[labels:masks].view(-1)[: stored.nbytes] = torch.from_numpy(stored.view(np.uint8))
        chosen = chosen_planes(moved, learned)
        out[masks : masks + len(chosen), :rows, :columns] = torch.from_numpy(chosen)
        if annotation.is_void is not None:
            is_void = placed.of_map(annotation.is_void.astype(np.uint8))
            out[-1, :rows, :columns] = torch.from_numpy(np.ascontiguousarray(is_void))


def instances_in(images: Tensor, *, image_channels: int, most_objects: int) -> InstanceBatch:
    """Read the objects of a batch of views uint8, on its device and without waiting for it."""
    num_planes = math.ceil(most_objects / BITS)
    stored = images[:, image_channels : -num_planes - 1].flatten(1)[:, : most_objects * LABEL_BYTES]
    return InstanceBatch(
        labels=stored.contiguous().view(torch.int32).long() - 1,
        planes=images[:, -num_planes - 1 : -1],
        is_known=images[:, -1] == 0,
    )


def masks_of(planes: Tensor, image: Tensor, place: Tensor) -> Tensor:
    """Return the masks of chosen objects (m, H, W) of 0 and 1 from planes (B, P, H, W)."""
    bits = (place % BITS).to(torch.uint8)[:, None, None]
    return (planes[image, place // BITS] >> bits) & 1
