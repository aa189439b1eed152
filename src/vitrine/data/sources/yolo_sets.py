"""YOLO's text files: `images/` beside `labels/`, or both in a folder per split; classes by `data.yaml` or a list.

A line has a box, or the corners of a polygon.
"""

from pathlib import Path
from typing import Any

from vitrine.data.decoding.box_files import BOX_NUMBERS, YoloObject, read_yolo_text
from vitrine.data.decoding.decode import read_file
from vitrine.data.sources.box_list import BoxList, Objects
from vitrine.data.sources.class_folders import find_splits
from vitrine.data.sources.folder_walk import list_images, subfolders
from vitrine.data.sources.outline_list import OutlineList, no_outline
from vitrine.data.sources.source import ALL, Source
from vitrine.errors import DataError
from vitrine.runtime.progress import notice, track
from vitrine.spelling import counted, printable

PICTURES, LABELS = "images", "labels"
# Lists of class names that tools write: a YAML file with `names`, or a name per line.
NAME_LISTS = ("classes.txt", "labels/classes.txt", "obj.names")


def finds(root: Path) -> bool:
    """Whether a folder has text files in `labels/` for the pictures in `images/`, whole or by split."""
    return root.is_dir() and bool(places_in(root))


def places_in(root: Path) -> dict[str, tuple[str, str]]:
    """Return the folders of pictures and of text files by split."""
    names = subfolders(root)
    if PICTURES in names and LABELS in names:
        splits = find_splits(subfolders(root / PICTURES))
        pairs = {split: (f"{PICTURES}/{name}", f"{LABELS}/{name}") for split, name in splits.items()} or {
            ALL: (PICTURES, LABELS)
        }
    else:
        pairs = {
            split: (f"{name}/{PICTURES}", f"{name}/{LABELS}")
            for split, name in find_splits(names).items()
            if (root / name / PICTURES).is_dir()
        }
    is_filled = [next((root / labels).rglob("*.txt"), None) is not None for _, labels in pairs.values()]
    return pairs if any(is_filled) else {}


def has_outlines(root: Path) -> bool:
    """Whether the first object of a folder has a polygon."""
    for _, labels in places_in(root).values():
        for file in sorted((root / labels).rglob("*.txt")):
            if file.name != "classes.txt" and (
                text := file.read_text(encoding="utf-8", errors="replace").strip()
            ):
                return len(text.splitlines()[0].split()) > 1 + BOX_NUMBERS
    return False


def open_all(root: Path, address: str, *, as_outlines: bool = False) -> dict[str, Source]:
    """Open the splits; a picture without a text file has no objects."""
    read = {
        split: _read(root, pictures, labels, split=split)
        for split, (pictures, labels) in places_in(root).items()
    }
    highest = max((one.label for _, files in read.values() for file in files for one in file), default=-1)
    classes = _classes(root, highest)
    kind = OutlineList if as_outlines else BoxList
    return {
        split: kind(
            root, paths, _objects(paths, files, as_outlines=as_outlines), classes=classes, address=address,
            is_relative=True,
        )
        for split, (paths, files) in read.items()
    }  # fmt: skip


def _read(root: Path, pictures: str, labels: str, *, split: str) -> tuple[list[str], list[list[YoloObject]]]:
    """Return the pictures of a split, and their objects."""
    names = sorted(list_images(root / pictures))
    if not names:
        raise DataError(f"{printable(str(root / pictures))} has no pictures")
    files, num_without = [], 0
    for name in track(names, f"Reading boxes of {split}", total=len(names)):
        file = root / labels / f"{name.rpartition('.')[0]}.txt"
        if not file.is_file():
            num_without += 1
            files.append(list[YoloObject]())
            continue
        text = read_file(str(file)).decode("utf-8", "replace")
        files.append(read_yolo_text(text, name=str(file.relative_to(root))))
    if num_without:
        notice(
            f"{counted(num_without, 'picture')} of {split} without a file in {labels}/ count as without objects"
        )
    return [f"{pictures}/{name}" for name in names], files


def _classes(root: Path, highest: int) -> tuple[str, ...]:
    """Return the class names of `data.yaml` or of a list, at least as many as the numbers in the files."""
    for file in (*sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))):
        names = _names_in(file)
        if names:
            return _enough(names, highest, where=file)
    for name in NAME_LISTS:
        if (root / name).is_file():
            lines = (root / name).read_text(encoding="utf-8").splitlines()
            return _enough([line.strip() for line in lines if line.strip()], highest, where=root / name)
    if highest < 0:
        raise DataError(f"no text file of {printable(str(root))} has an object")
    return tuple(f"class {number}" for number in range(highest + 1))


def _names_in(file: Path) -> list[str]:
    import yaml  # noqa: PLC0415 (few sets need it, and it would slow the start of every verb)

    try:
        values: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"cannot read {printable(str(file))}: {' '.join(str(error).split())}") from None
    names = values.get("names") if isinstance(values, dict) else None
    if isinstance(names, dict):
        names = [names[number] for number in sorted(names)]
    return [str(name) for name in names] if isinstance(names, list) else []


def _enough(names: list[str], highest: int, *, where: Path) -> tuple[str, ...]:
    if highest >= len(names):
        raise DataError(
            f"{printable(str(where))} has {counted(len(names), 'class name')}, and a text file the class {highest}, "
            "counted from 0"
        )
    return tuple(names)


def _objects(paths: list[str], files: list[list[YoloObject]], *, as_outlines: bool) -> Objects:
    objects = Objects()
    for path, file in zip(paths, files, strict=True):
        for one in file:
            if as_outlines and not one.corners:
                raise no_outline(f"an object of {printable(path)}")
            objects.add(one.box, one.label, outline=one.corners if as_outlines else None)
        objects.end_picture()
    return objects
