"""Archives of VTAB's specialized tasks: Camelyon, Retinopathy.

PatchCamelyon: `camelyonpatch_level_2_split_{train,valid,test}_{x,y}.h5`.

Diabetic Retinopathy, as on Kaggle: `trainLabels.csv`, `retinopathy_solution.csv`, `train/`, `test/`.

VTAB's val is the part of the test images that Kaggle marks Public, its test the part marked Private.
"""

import csv
from pathlib import Path

import numpy as np

from vitrine.data.sources.array_files import Hdf5Source, opened
from vitrine.data.sources.file_list import FileList
from vitrine.data.sources.source import Source
from vitrine.data.sources.vtab.tasks import Task
from vitrine.errors import DataError

_CAMELYON_PARTS = {"train": "train", "val": "valid", "test": "test"}
_CAMELYON_NAME = "camelyonpatch_level_2_split_{part}_{what}.h5"


def open_camelyon(folder: Path, task: Task) -> dict[str, Source] | None:
    """Open the three pairs of files."""
    if not list(folder.glob(_CAMELYON_NAME.format(part="*", what="*"))):
        return None
    splits: dict[str, Source] = {}
    for split, part in _CAMELYON_PARTS.items():
        images, answers = (folder / _CAMELYON_NAME.format(part=part, what=what) for what in ("x", "y"))
        for file in (images, answers):
            if not file.is_file():
                packed = " (unpack it from the .gz)" if file.with_name(file.name + ".gz").is_file() else ""
                raise DataError(f"{file} is missing{packed}; {task.name} needs all six files")
        with opened(answers) as archive:
            labels = np.asarray(archive["y"]).ravel().astype(np.int32)
        splits[split] = Hdf5Source(images, "x", labels=labels, classes=("0", "1"))
    return splits


_IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")
_KAGGLE_USAGE = {"public": "val", "private": "test"}


def open_retinopathy(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the two tables of levels 0 to 4."""
    train_file, test_file = folder / "trainLabels.csv", folder / "retinopathy_solution.csv"
    if not train_file.is_file() and not test_file.is_file():
        return None
    rows: dict[str, list[tuple[str, int]]] = {"train": [], "val": [], "test": []}
    for file, part in ((train_file, "train"), (test_file, "test")):
        if not file.is_file():
            raise DataError(f"{file} is missing; {task.name} reads labels from there")
        suffix = _suffix(folder / part)
        with file.open(newline="", encoding="utf-8") as opened:
            for row in csv.DictReader(opened):
                try:
                    split = "train" if part == "train" else _KAGGLE_USAGE[row["Usage"].strip().lower()]
                    rows[split].append((f"{part}/{row['image']}{suffix}", int(row["level"])))
                except (KeyError, ValueError, AttributeError) as error:
                    raise DataError(
                        f"{file} needs the columns image, level and, for the test, Usage (Public or Private)"
                    ) from error
    classes = [str(number) for number in range(task.num_classes)]
    return {
        split: FileList(
            folder,
            (path for path, _ in items),
            labels=np.array([label for _, label in items], dtype=np.int32),
            classes=classes,
        )
        for split, items in rows.items()
    }


def _suffix(folder: Path) -> str:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.suffix.lower() in _IMAGE_SUFFIXES:
                return path.suffix
    raise DataError(f"{folder} contains no images; unpack Kaggle's archive there")
