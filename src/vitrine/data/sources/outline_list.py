"""Pictures with an outline per object: COCO's polygons and runs, and YOLO's polygons."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.decoding.annotation import Annotation, Planes
from vitrine.data.decoding.coco_masks import decode_segmentation
from vitrine.data.decoding.mask_planes import add_mask, empty_planes, mask_areas
from vitrine.data.sources.box_list import BoxList, Objects
from vitrine.errors import DataError, TryOption
from vitrine.spelling import printable

# The fastest level: text of numbers shrinks to less than half of its size.
LEVEL = 1


class Outlines(Sequence[list[Any]]):
    """The outlines of many pictures: as compressed text, which takes a fifth of the memory of Python's lists."""

    def __init__(self, of_pictures: Iterable[Sequence[Any]]) -> None:
        buffer, ends = bytearray(), []
        for outlines in of_pictures:
            buffer += zlib.compress(json.dumps(list(outlines)).encode(), LEVEL)
            ends.append(len(buffer))
        self.ends = np.array(ends, dtype=np.int64)
        # An array, not bytes: worker processes then see it in shared memory instead of a copy each.
        self.joined = np.frombuffer(buffer, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        start = int(self.ends[index - 1]) if index else 0
        return json.loads(zlib.decompress(self.joined[start : int(self.ends[index])].tobytes()))


class OutlineList(BoxList):
    """Pictures by path relative to `base`; the masks of a picture are drawn when they are asked for."""

    task = "instances"

    def __init__(
        self,
        base: Path,
        paths: Iterable[str],
        objects: Objects,
        *,
        classes: Sequence[str],
        address: str = "",
        is_relative: bool = False,
    ) -> None:
        super().__init__(base, paths, objects, classes=classes, address=address, is_relative=is_relative)
        assert len(objects.outlines) == len(self.boxes)
        starts = [0, *objects.ends]
        self.outlines = Outlines(
            objects.outlines[start:end] for start, end in zip(starts, objects.ends, strict=False)
        )

    def annotation(self, index: int) -> Annotation:
        """Return the objects of example `index` with their masks."""
        annotation = super().annotation(index)
        planes = self.planes_of(index, annotation.size)
        areas = annotation.areas
        if areas is None:
            areas = mask_areas(planes, len(annotation.labels)).astype(np.float32)
        return replace(annotation, planes=planes, areas=areas)

    def planes_of(self, index: int, size: tuple[int, int]) -> Planes:
        """Draw the masks of example `index` (P, H, W)."""
        outlines = self.outlines[index]
        planes = empty_planes(len(outlines), size)
        for place, outline in enumerate(outlines):
            where = f"object {place + 1} of {printable(self.name(index))}"
            shape = in_pixels(outline, size) if self.is_relative else outline
            add_mask(planes, place, decode_segmentation(shape, size, where=where))
        return planes

    def fingerprint(self) -> str:
        """Hash names and sizes of pictures, all objects and their outlines."""
        digest = hashlib.blake2b(super().fingerprint().encode(), digest_size=16)
        digest.update(self.outlines.joined.tobytes())
        return digest.hexdigest()


def in_pixels(corners: Sequence[float], size: tuple[int, int]) -> list[list[float]]:
    """Return the corners of a polygon (x, y, x, y...) as shares of the picture in pixels, as COCO has polygons."""
    sides = (size[1], size[0]) * (len(corners) // 2)
    return [[share * side for share, side in zip(corners, sides, strict=True)]]


def no_outline(where: str) -> DataError:
    """Return the error for an object that has only a box, in a set of outlines."""
    return DataError(
        f"{where} has a box and no outline; draw its outline, or learn boxes",
        advice=[TryOption("task", "to learn boxes", "detection")],
    )
