"""Data sets for detection: VOC's XML, COCO's JSON and YOLO's text files, each in the layouts that tools write.

`boxes:FOLDER` opens a folder as such where it could be read in another way too. A picture and the file of its boxes
have the same name up to the extension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrine.data.decoding.annotation import DataTask
from vitrine.data.sources import coco_sets, voc_boxes, yolo_sets
from vitrine.data.sources.file_list import require_path
from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.spelling import printable

TASK: DataTask = "boxes"
PREFIX = "boxes:"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way in which boxes are stored: `finds` tells whether a path has it."""

    finds: Callable[[Path], bool]
    open: Callable[[Path, str], dict[str, Source]]
    is_sure: bool = True
    """Whether a folder of this layout can only be meant as boxes."""


LAYOUTS: Sequence[Layout] = (
    Layout(finds=coco_sets.finds, open=coco_sets.open_all),
    Layout(finds=yolo_sets.finds, open=yolo_sets.open_all),
    Layout(finds=voc_boxes.finds, open=voc_boxes.open_all),
    Layout(finds=voc_boxes.finds_pets, open=voc_boxes.open_pets, is_sure=False),
)


def recognises(address: str) -> bool:
    """Accept `boxes:FOLDER`, COCO's files, and folders whose layout can only be meant as boxes."""
    if address.startswith(PREFIX):
        return True
    path = Path(address)
    return path.exists() and any(layout.is_sure and layout.finds(path) for layout in LAYOUTS)


def open_all(address: str) -> dict[str, Source]:
    """Open the splits of the first layout that the folder or file has."""
    root = require_path(Path(address.removeprefix(PREFIX)))
    for layout in LAYOUTS:
        if layout.finds(root):
            return layout.open(root, address)
    raise DataError(
        f"{printable(str(root))} holds no boxes; put COCO's JSON beside the pictures, or a text file in labels/ for "
        "each picture in images/ (YOLO), or VOC's XML in Annotations/"
    )
