"""Boxes in files beside pictures: VOC's XML and YOLO's text. Each object has a class by name or by number.

Boxes are (left, top, right, bottom), right and bottom outside: in pixels, or in YOLO's files as shares of the sides.
"""

import math
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from vitrine.errors import DataError
from vitrine.spelling import printable

Box = tuple[float, float, float, float]
# Behind the class: a box, or the corners of a polygon.
BOX_NUMBERS, LEAST_CORNERS = 4, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlObject:
    """One object of a VOC file."""

    name: str
    box: Box
    is_difficult: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class YoloObject:
    """One line of a YOLO file."""

    label: int
    box: Box
    corners: tuple[float, ...]
    """x, y, x, y... of a polygon; empty for an object that has only a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlFile:
    """A VOC file: height and width as it states them, (0, 0) where it does not, and its objects."""

    size: tuple[int, int]
    objects: tuple[XmlObject, ...]


def read_voc_xml(data: bytes, *, name: str) -> XmlFile:
    """Read a file as VOC and LabelImg write it; pixels are counted from 1, and the last one belongs to the box."""
    try:
        root = ET.fromstring(data)
    except ET.ParseError as error:
        raise DataError(f"{printable(name)} is not XML: {error}") from None
    if root.tag != "annotation":
        raise DataError(f"{printable(name)} is not a VOC annotation: its root is {printable(root.tag)}")
    objects = []
    for node in root.iter("object"):
        label, box = node.findtext("name"), node.find("bndbox")
        if not label or box is None:
            raise DataError(f"{printable(name)} has an object without a name or a bndbox")
        left, top, right, bottom = (
            _number(box.findtext(side), where=name) for side in ("xmin", "ymin", "xmax", "ymax")
        )
        objects.append(
            XmlObject(
                name=label.strip(),
                box=(left - 1, top - 1, right, bottom),
                is_difficult=(node.findtext("difficult") or "0").strip() == "1",
            )
        )
    height, width = (root.findtext(f"size/{side}") or "0" for side in ("height", "width"))
    size = (int(_number(height, where=name)), int(_number(width, where=name)))
    return XmlFile(size=size, objects=tuple(objects))


def read_yolo_text(text: str, *, name: str) -> list[YoloObject]:
    """Read one object per line: class, centre and size as shares of the picture; or class and a polygon's corners."""
    objects = []
    for place, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {place}"
        label, *numbers = (_number(word, where=where) for word in line.split())
        if label < 0 or label != int(label):
            raise DataError(f"{printable(where)} begins with {label:g}; it must be the number of a class")
        if len(numbers) == BOX_NUMBERS:
            x, y, width, height = numbers
            corners: tuple[float, ...] = ()
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        elif len(numbers) >= 2 * LEAST_CORNERS and len(numbers) % 2 == 0:
            corners = tuple(numbers)
            box = (min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2]))
        else:
            raise DataError(
                f"{printable(where)} has {1 + len(numbers)} numbers; write class x y width height, or class and the "
                "corners of a polygon"
            )
        objects.append(YoloObject(label=int(label), box=box, corners=corners))
    return objects


def _number(text: str | None, *, where: str) -> float:
    """Read a finite number."""
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{printable(where)} has {printable(str(text))!r:.40} instead of a number")
    return value
