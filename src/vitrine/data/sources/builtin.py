"""Well-known sets by name: `pets:/data/pets`, or `pets` if it is in $VITRINE_DATA or ./data.

Each knows its layout on disk and how much of `train` the paper held out for its sweeps: 2 % of CIFAR, 10 % of
Pets and Flowers, 1 % of ImageNet. The paper tests on ImageNet's validation images, so they are `test`.
"""

import csv
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.data.sources.array_files import read_matlab
from vitrine.data.sources.class_folders import list_class_folders
from vitrine.data.sources.file_list import FileList, require_path
from vitrine.data.sources.folder_walk import subfolders
from vitrine.data.sources.labels import class_number
from vitrine.data.sources.objectnet import NUM_OBJECTS, is_objectnet, open_objectnet
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import DataError
from vitrine.spelling import near_match, printable

Opened = dict[str, Source]


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """One well-known set: its number of classes, the fraction that the paper held out, how to open its folder."""

    num_classes: int
    val_fraction: float = 0.1
    open: Callable[[Path], Opened] | None = None


class BuiltInSets:
    """Data sets that are opened by a well-known name, or recognised by a well-known layout."""

    def __init__(self, open_folder: Callable[[Path], Opened]) -> None:
        self._open_folder = open_folder

    def recognises(self, address: str) -> bool:
        """Accept a known name, with or without a folder, and folders laid out as a well-known set."""
        return recognises(address)

    def open_all(self, address: str) -> Opened:
        """Open the set's own splits."""
        return open_all(address, self._open_folder)


def recognises(address: str) -> bool:
    """Accept a known name, with or without a folder, and folders laid out as a well-known set."""
    name, folder = _parts(address)
    if name in SETS and (folder or not Path(address).exists()):
        return True
    path = Path(address)
    return path.is_dir() and any(is_layout(path) for is_layout in LAYOUTS.values())


def open_all(address: str, open_folder: Callable[[Path], Opened]) -> Opened:
    """Open the set's own splits; `open_folder` opens one whose layout is recognised by its content."""
    name, folder = _parts(address)
    if name not in SETS:
        path = Path(address)
        name = next(known for known, is_layout in LAYOUTS.items() if is_layout(path))
        folder = address
    known = SETS[name]
    root = require_path(Path(folder)) if folder else _find(name)
    splits = known.open(root) if known.open else open_folder(root)
    first = next(iter(splits.values()))
    if len(first.classes) != known.num_classes:
        raise DataError(
            f"{printable(str(root))} has {len(first.classes)} classes, but {name} has {known.num_classes}; "
            "open it without the name if it is another set"
        )
    for source in splits.values():
        source.val_fraction = known.val_fraction
        source.address = address
    return splits


def _pets(root: Path) -> Opened:
    """Breeds by the names of the images; `trainval.txt` is train, `test.txt` is test."""
    lists = {"train": "trainval.txt", "test": "test.txt"}
    named = {split: _first_words(root / "annotations" / file) for split, file in lists.items()}
    classes = sorted({name.rpartition("_")[0] for names in named.values() for name in names})
    number = {name: index for index, name in enumerate(classes)}
    return {
        split: FileList(
            root,
            (f"images/{name}.jpg" for name in names),
            labels=np.array([number[name.rpartition("_")[0]] for name in names], dtype=np.int32),
            classes=classes,
        )
        for split, names in named.items()
    }


def _flowers(root: Path) -> Opened:
    """The 102 flowers by number; the paper trains on `trnid` and `valid` together and tests on `tstid`."""
    labels = read_matlab(root / "imagelabels.mat")["labels"].ravel().astype(np.int32) - 1
    ids = {name: rows.ravel().astype(np.int64) for name, rows in read_matlab(root / "setid.mat").items()}
    whole = FileList(
        root,
        (f"jpg/image_{number:05d}.jpg" for number in range(1, len(labels) + 1)),
        labels=labels,
        classes=[str(number) for number in range(1, 103)],
    )
    train = np.sort(np.concatenate([ids["trnid"], ids["valid"]])) - 1
    return {"train": Subset(whole, train), "test": Subset(whole, np.sort(ids["tstid"]) - 1)}


def _tiny_imagenet(root: Path) -> Opened:
    """`train/<class>/images`, and `val/images` labelled by `val_annotations.txt`."""

    classes = subfolders(root / "train")
    number = {name: index for index, name in enumerate(classes)}
    annotations = root / "val" / "val_annotations.txt"
    rows = [line.split("\t") for line in _lines(annotations)]
    labels = [class_number(row[1] if len(row) > 1 else "", number, where=str(annotations)) for row in rows]
    val = FileList(
        root,
        (f"val/images/{row[0]}" for row in rows),
        labels=np.array(labels, dtype=np.int32),
        classes=classes,
    )
    return {"train": list_class_folders(root, classes=classes, under="train"), "val": val}


def _imagenet(root: Path) -> Opened:
    """`train/<wnid>` and `val/<wnid>`, or Kaggle's layout with `LOC_val_solution.csv`."""

    inner = "ILSVRC/Data/CLS-LOC"
    prefix = f"{inner}/" if (root / inner).is_dir() else ""
    classes = subfolders(require_path(root / f"{prefix}train"))
    train = list_class_folders(root, classes=classes, under=f"{prefix}train")
    solution = root / "LOC_val_solution.csv"
    if subfolders(require_path(root / f"{prefix}val")):
        return {"train": train, "test": list_class_folders(root, classes=classes, under=f"{prefix}val")}
    with require_path(solution).open(newline="", encoding="utf-8") as file:
        rows = sorted((row["ImageId"], row["PredictionString"].split()[0]) for row in csv.DictReader(file))
    number = {name: index for index, name in enumerate(classes)}
    test = FileList(
        root,
        (f"{prefix}val/{name}.JPEG" for name, _ in rows),
        labels=np.array(
            [class_number(label, number, where=str(solution)) for _, label in rows], dtype=np.int32
        ),
        classes=classes,
    )
    return {"train": train, "test": test}


SETS = {
    "cifar10": BuiltIn(num_classes=10, val_fraction=0.02),
    "cifar100": BuiltIn(num_classes=100, val_fraction=0.02),
    "pets": BuiltIn(num_classes=37, val_fraction=0.1, open=_pets),
    "flowers": BuiltIn(num_classes=102, val_fraction=0.1, open=_flowers),
    "imagenet": BuiltIn(num_classes=1000, val_fraction=0.01, open=_imagenet),
    "imagenette": BuiltIn(num_classes=10),
    "tiny-imagenet": BuiltIn(num_classes=200, open=_tiny_imagenet),
    "objectnet": BuiltIn(num_classes=NUM_OBJECTS, open=open_objectnet),
    "mnist": BuiltIn(num_classes=10),
    "fashion-mnist": BuiltIn(num_classes=10),
    "cub": BuiltIn(num_classes=200),
    "cars": BuiltIn(num_classes=196),
}


def _parts(address: str) -> tuple[str, str]:
    name, colon, folder = address.partition(":")
    return name.lower().replace("_", "-"), folder if colon and not folder.startswith("//") else ""


def _find(name: str) -> Path:
    places = [Path("data") / name]
    if os.environ.get("VITRINE_DATA"):
        places.insert(0, Path(os.environ["VITRINE_DATA"]) / name)
    for place in places:
        if place.is_dir():
            return place
    beside = near_match(name, os.listdir(".")) if name else None  # noqa: PTH208
    raise DataError(
        f"{name} is not at {' or '.join(map(str, places))}; pass its folder as {name}:/path/to/{name}, or "
        f"set VITRINE_DATA to the folder that contains it" + (f"; did you mean ./{beside}?" if beside else "")
    )


def _is_pets(path: Path) -> bool:
    return (path / "annotations" / "trainval.txt").is_file() and (path / "images").is_dir()


def _is_flowers(path: Path) -> bool:
    return (path / "setid.mat").is_file() and (path / "imagelabels.mat").is_file()


def _is_tiny(path: Path) -> bool:
    return (path / "val" / "val_annotations.txt").is_file() and (path / "train").is_dir()


def _lines(file: Path) -> list[str]:
    text = require_path(file).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _first_words(file: Path) -> list[str]:
    return [line.split()[0] for line in _lines(file)]


# How sets without a name are recognised by their content.
LAYOUTS: dict[str, Callable[[Path], bool]] = {
    "pets": _is_pets,
    "flowers": _is_flowers,
    "tiny-imagenet": _is_tiny,
    "objectnet": is_objectnet,
}
