"""Archives of VTAB's natural tasks: DTD, Flowers102, Sun397, SVHN.

DTD's archive: `images/<texture>/*.jpg` and the first of its ten splits, `labels/{train,val,test}1.txt`.

Oxford Flowers 102: `jpg/`, `imagelabels.mat`, `setid.mat` with its own train, val and test.

SUN397: `ClassName.txt` with lines such as `/a/abbey`, and the images below those folders.

With TensorFlow Datasets' lists (`sun397_tfds_{tr,va,te}.txt`, lines `/a/abbey/sun_x.jpg`) beside it, the split is
VTAB's; without them it is not split here.

SVHN's cropped digits: `train_32x32.mat` and `test_32x32.mat` with X (32, 32, 3, N) and y (N, 1).
"""

from pathlib import Path

import numpy as np

from vitrine.data.decoding.file_kind import IMAGE_SUFFIXES
from vitrine.data.sources.array_files import read_matlab
from vitrine.data.sources.file_list import FileList
from vitrine.data.sources.folder_walk import scan, subfolders
from vitrine.data.sources.in_memory import ArraySource
from vitrine.data.sources.source import Source, Subset
from vitrine.data.sources.vtab.labels import svhn_digit
from vitrine.data.sources.vtab.tasks import Task
from vitrine.errors import DataError


def open_dtd(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the three lists."""
    root = next(
        (path for path in (folder, folder / "dtd") if (path / "labels" / "train1.txt").is_file()), None
    )
    if root is None:
        return None
    number = {name: index for index, name in enumerate(subfolders(root / "images"))}
    splits: dict[str, Source] = {}
    for split in ("train", "val", "test"):
        file = root / "labels" / f"{split}1.txt"
        if not file.is_file():
            raise DataError(f"{file} is missing; {task.name} reads its split from there")
        names = file.read_text(encoding="utf-8").split()
        unknown = next((name for name in names if name.partition("/")[0] not in number), None)
        if unknown is not None:
            raise DataError(f"{file} names {unknown}, and there is no such folder below {root / 'images'}")
        labels = [number[name.partition("/")[0]] for name in names]
        splits[split] = FileList(
            root,
            (f"images/{name}" for name in names),
            labels=np.array(labels, dtype=np.int32),
            classes=list(number),
        )
    return splits


_FLOWER_SPLITS = {"train": "trnid", "val": "valid", "test": "tstid"}


def open_flowers(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read labels and split."""
    files = [folder / "imagelabels.mat", folder / "setid.mat"]
    if not any(file.is_file() for file in files):
        return None
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is missing; {task.name} needs imagelabels.mat and setid.mat")
    arrays = read_matlab(files[0]) | read_matlab(files[1])
    missing = [name for name in ("labels", *_FLOWER_SPLITS.values()) if name not in arrays]
    if missing:
        raise DataError(
            f"{folder} has no {missing[0]!r} in its .mat files; they do not belong to {task.name}"
        )
    whole = FileList(
        folder,
        (f"jpg/image_{number:05d}.jpg" for number in range(1, arrays["labels"].size + 1)),
        labels=arrays["labels"].ravel().astype(np.int32) - 1,
        classes=[str(number) for number in range(1, task.num_classes + 1)],
    )
    return {
        split: Subset(whole, np.sort(arrays[name].ravel().astype(np.int64)) - 1)
        for split, name in _FLOWER_SPLITS.items()
    }


_SUN_LISTS = {"train": "sun397_tfds_tr.txt", "val": "sun397_tfds_va.txt", "test": "sun397_tfds_te.txt"}


def open_sun397(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the classes, and the lists if there are any."""
    root = next((path for path in (folder, folder / "SUN397") if (path / "ClassName.txt").is_file()), None)
    if root is None:
        return None
    classes = [line.strip().strip("/") for line in _lines(root / "ClassName.txt")]
    number = {name: index for index, name in enumerate(classes)}
    split_lists = {split: root / name for split, name in _SUN_LISTS.items() if (root / name).is_file()}
    if not split_lists:
        paths = [f"{name}/{image}" for name in classes for image in _image_names(root / name)]
        return {"all": _sun_source(root, paths, number, root / "ClassName.txt")}
    for name in _SUN_LISTS.values():
        if root / name not in split_lists.values():
            raise DataError(f"{root / name} is missing; {task.name} needs all three lists or none")
    return {
        split: _sun_source(root, [line.strip().strip("/") for line in _lines(file)], number, file)
        for split, file in split_lists.items()
    }


def _sun_source(root: Path, paths: list[str], number: dict[str, int], file: Path) -> Source:
    labels = []
    for path in paths:
        name = path.rpartition("/")[0]
        if name not in number:
            raise DataError(f"{file} names {path}, whose class is not in ClassName.txt")
        labels.append(number[name])
    return FileList(root, paths, labels=np.array(labels, dtype=np.int32), classes=list(number))


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _image_names(folder: Path) -> list[str]:
    entries = scan(str(folder))
    return sorted(entry.name for entry in entries if Path(entry.name).suffix.lower() in IMAGE_SUFFIXES)


# train_32x32.mat unpacks to 225 MB.
_MOST_SVHN_BYTES = 2**30


def open_svhn(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read both files."""
    files = {split: folder / f"{split}_32x32.mat" for split in ("train", "test")}
    if not any(file.is_file() for file in files.values()):
        return None
    splits: dict[str, Source] = {}
    for split, file in files.items():
        if not file.is_file():
            raise DataError(f"{file} is missing; {task.name} needs both train_32x32.mat and test_32x32.mat")
        arrays = read_matlab(file, most_bytes=_MOST_SVHN_BYTES)
        if not {"X", "y"} <= set(arrays) or arrays["X"].ndim != 4 or arrays["X"].shape[3] != arrays["y"].size:
            raise DataError(f"{file} does not contain X (32, 32, 3, N) and y (N, 1), as SVHN's files do")
        splits[split] = ArraySource(
            np.ascontiguousarray(arrays["X"].transpose(3, 0, 1, 2)),  # (N, 32, 32, 3)
            labels=svhn_digit(arrays["y"]),
            classes=[str(digit) for digit in range(10)],
            address=str(file),
            root=folder,
            prefix=f"{split}/",
        )
    return splits
