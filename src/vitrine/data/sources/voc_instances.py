"""VOC's masks of objects: `SegmentationObject` beside `SegmentationClass`, with the lists of its segmentation."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.decoding.decode import read_file
from vitrine.data.decoding.instance_file import decode_objects, objects_of
from vitrine.data.decoding.mask_file import MaskValues, decode_mask
from vitrine.data.sources.file_list import FileList, Strings
from vitrine.data.sources.mask_sets import VOC_CLASSES, voc_folder
from vitrine.data.sources.source import NO_LABEL, Source
from vitrine.data.sources.voc_boxes import OBJECTS, names_in
from vitrine.runtime.progress import notice
from vitrine.spelling import counted, printable

OBJECT_MASKS, CLASS_MASKS = "SegmentationObject", "SegmentationClass"
VALUES = MaskValues.in_order(len(VOC_CLASSES))
# The class of each value: the background has none.
NUMBERS = {value: value - 1 for value in range(1, len(VOC_CLASSES))}


def finds(root: Path) -> bool:
    """Whether a folder is VOC's, or has it, with masks of objects."""
    folder = voc_folder(root) if root.is_dir() else None
    return folder is not None and (folder / OBJECT_MASKS).is_dir()


def open_all(root: Path, address: str) -> dict[str, Source]:
    """Open the official lists of VOC's segmentation."""
    folder = voc_folder(root)
    assert folder is not None
    lists = folder / "ImageSets" / "Segmentation"
    return {
        split: _opened(folder, lists / f"{split}.txt", address=address)
        for split in ("train", "val", "test")
        if (lists / f"{split}.txt").is_file()
    }


class ObjectMaskList(FileList):
    """Pictures of VOC with two masks each, which are read when they are asked for."""

    task = "instances"
    has_fixed_classes = True

    def __init__(self, base: Path, names: Sequence[str], *, address: str) -> None:
        labels = np.full((len(names), 1), NO_LABEL, dtype=np.int32)
        paths = Strings(f"JPEGImages/{name}.jpg" for name in names)
        super().__init__(base, paths, labels=labels, classes=OBJECTS, address=address)
        self.masks = Strings(names)

    def annotation(self, index: int) -> Annotation:
        """Read the objects of example `index`; pixels on a border count nowhere."""
        name = f"{self.masks[index]}.png"
        files = {folder: self.base / folder / name for folder in (OBJECT_MASKS, CLASS_MASKS)}
        objects = decode_objects(read_file(str(files[OBJECT_MASKS])), name=f"{OBJECT_MASKS}/{name}")
        classes = decode_mask(read_file(str(files[CLASS_MASKS])), VALUES, name=f"{CLASS_MASKS}/{name}")
        return objects_of(objects, classes, NUMBERS, name=f"{OBJECT_MASKS}/{name}")

    def fingerprint(self) -> str:
        """Hash names and sizes of pictures and masks."""
        digest = hashlib.blake2b(super().fingerprint().encode(), digest_size=16)
        for name in self.masks:
            for folder in (OBJECT_MASKS, CLASS_MASKS):
                path = self.base / folder / f"{name}.png"
                digest.update(f"{folder}/{name}\0{path.stat().st_size if path.exists() else 0}\n".encode())
        return digest.hexdigest()


def _opened(root: Path, file: Path, *, address: str) -> ObjectMaskList:
    names = names_in(file)
    kept = [name for name in names if (root / OBJECT_MASKS / f"{name}.png").is_file()]
    if len(kept) < len(names):
        missing = counted(len(names) - len(kept), "picture")
        notice(f"Skipped {missing} of {printable(str(file))} without a mask of objects")
    return ObjectMaskList(root, kept, address=address)
