"""COCO's JSON: annotations (pictures, classes, objects) and results (what was found), checked as they are read."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrine.errors import DataError
from vitrine.runtime.files import parse_json
from vitrine.spelling import printable


def read_json(file: Path) -> Any:
    """Parse a JSON file; the error names it."""
    try:
        return parse_json(file.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {printable(str(file))}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{printable(str(file))} is not JSON: {error}") from None


def read_annotations(file: Path) -> Mapping[str, Any]:
    """Read COCO annotations: lists of images, categories and annotations, each with its ids."""
    values = read_json(file)
    lists = ("images", "categories", "annotations")
    if not isinstance(values, dict) or not all(isinstance(values.get(name), list) for name in lists):
        raise DataError(
            f"{printable(str(file))} holds no COCO annotations; it must have the lists {', '.join(lists)}"
        )
    for name, needed in zip(
        lists, (("id",), ("id", "name"), ("image_id", "category_id", "bbox")), strict=True
    ):
        for place, row in enumerate(values[name]):
            if not isinstance(row, dict) or not all(key in row for key in needed):
                raise DataError(
                    f"{printable(str(file))}: entry {place} of {name} lacks {' or '.join(needed)}"
                )
    for place, row in enumerate(values["annotations"]):
        require_box(row["bbox"], where=f"{printable(str(file))}: annotation {place}")
    return values


def read_results(file: Path) -> Sequence[Mapping[str, Any]]:
    """Read COCO results: a list of boxes or masks with image, category and score."""
    rows = read_json(file)
    if not isinstance(rows, list):
        raise DataError(f"{printable(str(file))} holds no COCO results; it must be a list")
    for place, row in enumerate(rows):
        where = f"{printable(str(file))}: result {place}"
        has_mask = isinstance(row, dict) and "segmentation" in row
        needed = ("image_id", "category_id", *(() if has_mask else ("bbox",)), "score")
        if not isinstance(row, dict) or not all(key in row for key in needed):
            raise DataError(f"{where} lacks {', '.join(needed)}")
        if not has_mask:
            require_box(row["bbox"], where=where)
        if not is_number(row["score"]):
            raise DataError(f"{where} has the score {row['score']!r:.40}, which is not a number")
    return rows


def require_box(box: Any, *, where: str) -> None:
    """Refuse a box that is not left, top, width and height."""
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)) or min(box[2:]) < 0:
        raise DataError(f"{where} has the box {box!r:.60}; a box is [left, top, width, height] in pixels")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
