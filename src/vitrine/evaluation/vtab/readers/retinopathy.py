"""Diabetic Retinopathy as Kaggle has it: `trainLabels.csv`, `retinopathy_solution.csv`, `train/`, `test/`.

VTAB's val is the part of the test images that Kaggle marks Public, its test the part marked Private.
"""

import csv
from pathlib import Path

import numpy as np

from vitrine.data.file_list import FileList
from vitrine.data.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.vtab.tasks import Task

_SUFFIXES = (".jpeg", ".jpg", ".png")
_USAGE = {"public": "val", "private": "test"}


def open_splits(folder: Path, task: Task) -> dict[str, Source] | None:
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
                    split = "train" if part == "train" else _USAGE[row["Usage"].strip().lower()]
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
            if path.suffix.lower() in _SUFFIXES:
                return path.suffix
    raise DataError(f"{folder} holds no images; unpack Kaggle's archive there")
