"""COCO's JSON: a file of annotations, or a folder with one per split, as COCO, CVAT and Roboflow lay it out."""

import mmap
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrine.data.decoding.box_files import Box
from vitrine.data.decoding.coco_file import is_number, read_annotations
from vitrine.data.sources.box_list import BoxList, Objects
from vitrine.data.sources.file_list import require_inside
from vitrine.data.sources.outline_list import OutlineList, no_outline
from vitrine.data.sources.source import ALL, SPLIT_NAMES, Source
from vitrine.errors import DataError
from vitrine.runtime.progress import notice
from vitrine.spelling import counted, printable, some_of

# Patterns of annotation files in a folder; those of the last two names may be something else.
PATTERNS = (
    "annotations/instances_*.json", "*/_annotations.coco.json", "_annotations.coco.json", "instances*.json",
    "*.coco.json",
)  # fmt: skip
UNSURE_PATTERNS = ("annotations.json", "annotations/*.json")
KEYS = (b'"images"', b'"categories"', b'"annotations"')
# The first outline of a file: polygons or runs; the list is empty where there is only a box.
OUTLINE = re.compile(rb'"segmentation"\s*:\s*(\[\s*\[|\{|\[\s*\])')
# This many file names are looked for to decide which folder has the pictures.
LOOKED_AT = 20


def finds(path: Path) -> bool:
    """Whether a path is a file of annotations, or a folder with some."""
    return path.suffix == ".json" if path.is_file() else bool(files_in(path))


def files_in(root: Path) -> list[Path]:
    """Return the files of annotations in a folder: those of the first pattern that has any."""
    files = next((files for pattern in PATTERNS if (files := sorted(root.glob(pattern)))), [])
    if files:
        return files
    unsure = next((files for pattern in UNSURE_PATTERNS if (files := sorted(root.glob(pattern)))), [])
    return [file for file in unsure if (data := file.read_bytes()) and all(key in data for key in KEYS)]


def has_outlines(path: Path) -> bool:
    """Whether the first object of a file, or of a folder's files, that may have an outline has one."""
    for file in [path] if path.is_file() else files_in(path):
        if file.stat().st_size:
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                first = OUTLINE.search(data)
                if first is not None:
                    return not first[1].endswith(b"]")
    return False


def open_all(path: Path, address: str, *, as_outlines: bool = False) -> dict[str, Source]:
    """Open a file as one set, or each file of a folder as the split of its name."""
    files = {ALL: path} if path.is_file() else by_split(files_in(path), root=path)
    values = {split: read_annotations(file) for split, file in files.items()}
    categories = {split: sorted(_named(one), key=lambda pair: pair[0]) for split, one in values.items()}
    first = next(iter(categories.values()))
    for split, known in categories.items():
        if known != first:
            raise DataError(f"{printable(str(files[split]))} has other categories than {next(iter(files))}")
    number = {one: place for place, (one, _) in enumerate(first)}
    classes = tuple(name for _, name in first)
    if not classes:
        raise DataError(f"{printable(str(path))} has no categories")
    return {
        split: _opened(
            files[split], values[split], number, classes=classes, address=address, as_outlines=as_outlines
        )
        for split in ("train", "val", "test", ALL)
        if split in files
    }


def by_split(files: list[Path], *, root: Path) -> dict[str, Path]:
    """Name the split of each file, by its name or its folder: `instances_train2017.json`, `valid/…`."""
    splits: dict[str, Path] = {}
    for file in files:
        words = [*file.stem.lower().replace("-", "_").split("_"), *file.relative_to(root).parts[:-1]]
        known = [
            SPLIT_NAMES[word] for one in words if (word := one.lower().rstrip("0123456789")) in SPLIT_NAMES
        ]
        split = known[0] if known else ALL
        if split in splits:
            raise DataError(
                f"both {printable(str(splits[split]))} and {printable(str(file))} could be {split}; pass one of them"
            )
        splits[split] = file
    if ALL in splits and len(splits) > 1:
        notice(f"{printable(str(splits.pop(ALL)))} is skipped: its name does not show a split")
    return splits


def picture_folder(file: Path, names: list[str]) -> Path:
    """Return the folder that has the pictures of a file of annotations: beside it, or one of COCO's names."""
    above, split = file.parent.parent, file.stem.removeprefix("instances_")
    places = [
        file.parent, file.parent / "images", file.parent / split, above / split, above / "images" / split,
        above / "images", above,
    ]  # fmt: skip
    counts = [sum((place / name).is_file() for name in names[:LOOKED_AT]) for place in places]
    if any(counts):
        return places[counts.index(max(counts))]
    raise DataError(
        f"the pictures of {printable(str(file))}, such as {some_of(names, most=1)}, are not beside it, nor in "
        f"images/ or {split}/ there or one folder up"
    )


def _opened(
    file: Path,
    values: Mapping[str, Any],
    number: Mapping[int, int],
    *,
    classes: tuple[str, ...],
    address: str,
    as_outlines: bool,
) -> BoxList:
    pictures = values["images"]
    names = [str(one.get("file_name", "")) for one in pictures]
    if not names or not all(names):
        raise DataError(f"{printable(str(file))} has no pictures, or one without a file_name")
    base = picture_folder(file, names)
    missing = [name for name in names if not (base / name).is_file()]
    if missing:
        notice(
            f"Skipped {counted(len(missing), 'picture')} of {printable(str(file))}, missing in "
            f"{printable(str(base))}: {some_of(missing)}"
        )
    absent = set(missing)
    of_picture = defaultdict[Any, list[Mapping[str, Any]]](list)
    known = {one["id"] for one in pictures}
    for place, one in enumerate(values["annotations"]):
        if one["image_id"] not in known or one["category_id"] not in number:
            raise DataError(
                f"{printable(str(file))}: annotation {place} names image {one['image_id']!r} and category "
                f"{one['category_id']!r}, which are not both in the file"
            )
        of_picture[one["image_id"]].append(one)
    objects, kept = Objects(), []
    for picture, name in zip(pictures, names, strict=True):
        if name in absent:
            continue
        require_inside(name, base, listing=str(file))
        kept.append(name)
        for one in of_picture[picture["id"]]:
            left, top, width, height = (float(side) for side in one["bbox"])
            box: Box = (left, top, left + width, top + height)
            area = float(one["area"]) if is_number(one.get("area")) else width * height
            if as_outlines and not one.get("segmentation"):
                raise no_outline(f"{printable(str(file))}: an object of {printable(name)}")
            objects.add(
                box, number[one["category_id"]], is_ignored=bool(one.get("iscrowd", 0)), area=area,
                outline=one["segmentation"] if as_outlines else None,
            )  # fmt: skip
        sides = picture.get("height"), picture.get("width")
        objects.end_picture((int(sides[0]), int(sides[1])) if all(map(is_number, sides)) else (0, 0))
    kind = OutlineList if as_outlines else BoxList
    return kind(base, kept, objects, classes=classes, address=address)


def _named(values: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return id and name of every category."""
    return [(one["id"], str(one["name"])) for one in values["categories"]]
