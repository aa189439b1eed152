"""Data sets with a mask per object: COCO's and YOLO's outlines, and VOC's PNGs of objects.

`instances:FOLDER` opens a folder as such where it could be read in another way too: VOC has class masks and boxes
beside them. COCO and YOLO are seen as sets of outlines if their first object has one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitrine.data.decoding.annotation import DataTask
from vitrine.data.sources import coco_sets, voc_instances, yolo_sets
from vitrine.data.sources.file_list import require_path
from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.spelling import printable

TASK: DataTask = "instances"
PREFIX = "instances:"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way in which masks of objects are stored: `finds` tells whether a path has it."""

    finds: Callable[[Path], bool]
    open: Callable[[Path, str], dict[str, Source]]
    is_meant: Callable[[Path], bool]
    """Whether a path of this layout is meant as masks of objects, if nobody says so."""


LAYOUTS: Sequence[Layout] = (
    Layout(finds=voc_instances.finds, open=voc_instances.open_all, is_meant=lambda _: False),
    Layout(
        finds=coco_sets.finds,
        open=partial(coco_sets.open_all, as_outlines=True),
        is_meant=coco_sets.has_outlines,
    ),
    Layout(
        finds=yolo_sets.finds,
        open=partial(yolo_sets.open_all, as_outlines=True),
        is_meant=yolo_sets.has_outlines,
    ),
)


def recognises(address: str) -> bool:
    """Accept `instances:FOLDER`, and sets whose first object has an outline."""
    if address.startswith(PREFIX):
        return True
    path = Path(address)
    if not path.exists():
        return False
    layout = next((one for one in LAYOUTS if one.finds(path)), None)
    return layout is not None and layout.is_meant(path)


def open_all(address: str) -> dict[str, Source]:
    """Open the splits of the first layout that the folder or file has."""
    root = require_path(Path(address.removeprefix(PREFIX)))
    for layout in LAYOUTS:
        if layout.finds(root):
            return layout.open(root, address)
    raise DataError(
        f"{printable(str(root))} holds no masks of objects; put COCO's JSON with outlines beside the pictures, or "
        "polygons in a text file of labels/ for each picture in images/ (YOLO), or VOC's SegmentationObject"
    )
