"""Pictures with boxes of objects: shared by every layout of data sets for detection."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import Annotation, DataTask
from vitrine.data.decoding.box_files import Box
from vitrine.data.decoding.image_file import read_facts
from vitrine.data.sources.file_list import FileList, Strings
from vitrine.data.sources.source import NO_LABEL


@dataclass
class Objects:
    """The objects of many pictures, collected picture by picture."""

    ends: list[int] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    is_ignored: list[bool] = field(default_factory=list)
    areas: list[float] = field(default_factory=list)
    """Empty where the area of an object is that of its box."""
    outlines: list[Any] = field(default_factory=list)
    """Polygons or runs of each object, in sets of outlines."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Height and width of each picture as its labels state them; (0, 0) where they do not."""

    def add(
        self,
        box: Box,
        label: int,
        *,
        is_ignored: bool = False,
        area: float | None = None,
        outline: Any = None,
    ) -> None:
        """Add an object of the current picture."""
        self.boxes.append(box)
        self.labels.append(label)
        self.is_ignored.append(is_ignored)
        if area is not None:
            self.areas.append(area)
        if outline is not None:
            self.outlines.append(outline)

    def end_picture(self, size: tuple[int, int] = (0, 0)) -> None:
        """Finish the current picture."""
        self.ends.append(len(self.boxes))
        self.sizes.append(size)


class BoxList(FileList):
    """Pictures by path relative to `base`, and their objects in the same order."""

    task: DataTask = "boxes"
    has_fixed_classes = True

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
        listed = Strings(paths)
        labels = np.full((len(listed), 1), NO_LABEL, dtype=np.int32)
        super().__init__(base, listed, labels=labels, classes=classes, address=address)
        self.ends = np.array(objects.ends, dtype=np.int64)
        self.boxes: NDArray[np.float32] = np.array(objects.boxes, dtype=np.float32).reshape(-1, 4)
        self.numbers = np.array(objects.labels, dtype=np.int32)
        self.is_ignored = np.array(objects.is_ignored, dtype=bool)
        self.areas = np.array(objects.areas, dtype=np.float32) if objects.areas else None
        self.sizes = np.array(objects.sizes, dtype=np.int32).reshape(-1, 2)
        # Whether boxes are shares of the picture, as in YOLO's files.
        self.is_relative = is_relative
        assert len(self.ends) == len(self.paths) == len(self.sizes)
        assert self.areas is None or len(self.areas) == len(self.boxes)

    def annotation(self, index: int) -> Annotation:
        """Return the objects of example `index` as they are labelled; without a labelled size, the picture's."""
        start, end = int(self.ends[index - 1]) if index else 0, int(self.ends[index])
        height, width = (int(side) for side in self.sizes[index])
        boxes = self.boxes[start:end]
        if not height:
            facts = read_facts(self.read(index).data, name=self.name(index))
            height, width = facts.height, facts.width
        if self.is_relative:
            boxes = boxes * np.array([width, height, width, height], dtype=np.float32)
        return Annotation(
            size=(height, width),
            boxes=boxes,
            labels=self.numbers[start:end].astype(np.int64),
            is_ignored=self.is_ignored[start:end],
            areas=None if self.areas is None else self.areas[start:end],
        )

    def fingerprint(self) -> str:
        """Hash names and sizes of pictures, and all objects."""
        digest = hashlib.blake2b(super().fingerprint().encode(), digest_size=16)
        for values in (self.ends, self.boxes, self.numbers, self.is_ignored, self.sizes):
            digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()
