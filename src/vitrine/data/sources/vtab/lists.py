"""VTAB's lists: `train800.txt`, `val200.txt`, `train800val200.txt`, `test.txt`, lines `path label`."""

from pathlib import Path

import numpy as np

from vitrine.data.sources.file_list import FileList, require_path
from vitrine.data.sources.source import ALL, Source
from vitrine.data.sources.tables import text_of
from vitrine.errors import DataError
from vitrine.spelling import printable

LISTS = {
    "train": "train800.txt",
    "val": "val200.txt",
    "test": "test.txt",
    "trainval": "train800val200.txt",
}


def recognises(address: str) -> bool:
    """Accept a folder with VTAB's lists, or one such list."""
    path = Path(address)
    if path.is_dir():
        return (path / LISTS["trainval"]).is_file() or (path / LISTS["train"]).is_file()
    return path.suffix == ".txt" and path.is_file()


def open_all(address: str) -> dict[str, Source]:
    """Read the lists; `trainval` is the 1000 images, classes are numbers as in the lists."""
    path = require_path(Path(address))
    root = path if path.is_dir() else path.parent
    files = {ALL: path} if path.is_file() else {split: path / name for split, name in LISTS.items()}
    lists = {split: read_list(file) for split, file in files.items() if file.is_file()}
    if "train" not in lists and "trainval" in lists:
        lists = {"train": lists.pop("trainval")} | lists
    num_classes = 1 + max(int(labels.max(initial=0)) for _, labels in lists.values())
    classes = [str(number) for number in range(num_classes)]
    return {
        split: FileList(root, paths, labels=labels, classes=classes, address=address)
        for split, (paths, labels) in lists.items()
    }


def read_list(file: Path) -> tuple[list[str], np.ndarray]:
    """Read `path label` lines: paths, and labels (N,) int32."""
    paths, labels = [], []
    for number, line in enumerate(text_of(file).splitlines(), start=1):
        if not line.strip():
            continue
        path, _, label = line.strip().rpartition(" ")
        if not path or not label.isdecimal():
            raise DataError(
                f"line {number} of {printable(str(file))} is not a path and a number: {line.strip()[:80]!r}"
            )
        paths.append(path.strip())
        labels.append(int(label))
    if not paths:
        raise DataError(f"{printable(str(file))} is empty")
    return paths, np.array(labels, dtype=np.int32)
