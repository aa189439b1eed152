"""SUN397: `ClassName.txt` with lines such as `/a/abbey`, and the images below those folders.

With TensorFlow Datasets' lists (`sun397_tfds_{tr,va,te}.txt`, lines `/a/abbey/sun_x.jpg`) beside it, the split is
VTAB's; without them it is not split here.
"""

from pathlib import Path

import numpy as np

from vitrine.data.file_list import IMAGE_SUFFIXES, FileList, scan
from vitrine.data.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.vtab.tasks import Task

_LISTS = {"train": "sun397_tfds_tr.txt", "val": "sun397_tfds_va.txt", "test": "sun397_tfds_te.txt"}


def open_splits(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the classes, and the lists where they are there."""
    root = next((path for path in (folder, folder / "SUN397") if (path / "ClassName.txt").is_file()), None)
    if root is None:
        return None
    classes = [line.strip().strip("/") for line in _lines(root / "ClassName.txt")]
    number = {name: index for index, name in enumerate(classes)}
    found = {split: root / name for split, name in _LISTS.items() if (root / name).is_file()}
    if not found:
        paths = [f"{name}/{image}" for name in classes for image in _images(root / name)]
        return {"all": _listed(root, paths, number, root / "ClassName.txt")}
    for name in _LISTS.values():
        if root / name not in found.values():
            raise DataError(f"{root / name} is missing; {task.name} needs all three lists or none")
    return {
        split: _listed(root, [line.strip().strip("/") for line in _lines(file)], number, file)
        for split, file in found.items()
    }


def _listed(root: Path, paths: list[str], number: dict[str, int], file: Path) -> Source:
    labels = []
    for path in paths:
        name = path.rpartition("/")[0]
        if name not in number:
            raise DataError(f"{file} names {path}, whose class is not in ClassName.txt")
        labels.append(number[name])
    return FileList(root, paths, labels=np.array(labels, dtype=np.int32), classes=list(number))


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _images(folder: Path) -> list[str]:
    entries = scan(str(folder))
    return sorted(entry.name for entry in entries if Path(entry.name).suffix.lower() in IMAGE_SUFFIXES)
