"""Class folders: one folder per class, under `train`, `val`, `test` or directly under the root.

An archive unpacked into a folder of its own name (`photos/photos/cat`) is read one folder deeper.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrine.data.sources.file_list import FileList, Strings, no_such, require_path
from vitrine.data.sources.folder_walk import holds_images, list_images, no_images, scan, subfolders
from vitrine.data.sources.manifest import tables_in
from vitrine.data.sources.source import ALL, NO_LABEL, SPLIT_NAMES, Labels, Source
from vitrine.data.sources.tables import SPREADSHEETS
from vitrine.errors import DataError
from vitrine.runtime.progress import notice
from vitrine.spelling import counted, printable, some_of


def recognises(address: str) -> bool:
    """Accept any folder: this kind is asked last."""
    return Path(address).is_dir()


def open_all(address: str) -> dict[str, Source]:
    """List the images of each split; classes are the folder names of all splits together, sorted."""
    root = require_path(Path(address))
    base = _unwrapped(root)
    names = subfolders(base)
    split_folders = find_splits(names)
    extra = [name for name in names if name not in split_folders.values()]
    if not names:
        raise _nothing_in(base)
    for table in tables_in(root):
        notice(
            f"{printable(str(table))} has labels, too; the folders are the classes, unless you pass the table instead"
        )
    if not split_folders or (extra and "train" not in split_folders):
        # A class may be called `test`: without `train` these are not splits.
        return {ALL: list_class_folders(base, classes=names, address=address, root=root)}
    classes = sorted({name for folder in split_folders.values() for name in subfolders(base / folder)})
    if not classes:
        raise _nothing_in(base)
    return {
        split: list_class_folders(base, classes=classes, under=folder, address=address, root=root)
        for split, folder in split_folders.items()
    }


def _unwrapped(root: Path) -> Path:
    """Return the only folder in `root` if it contains folders and no images: a single class is not a data set."""
    names = subfolders(root)
    if len(names) != 1 or find_splits(names):
        return root
    inner = root / names[0]
    if holds_images(inner) or len(subfolders(inner)) < 2:
        return root
    notice(
        f"{printable(str(root))} contains one folder, {printable(names[0])}; the folders in it are the classes"
    )
    return inner


def find_splits(names: list[str]) -> dict[str, str]:
    """Return which folder names are splits, by our name of the split, train first."""
    splits: dict[str, str] = {}
    for name in names:
        split = SPLIT_NAMES.get(name.lower())
        if split is None:
            continue
        if split in splits:
            raise DataError(f"both {splits[split]} and {name} could be the {split} split; rename one of them")
        splits[split] = name
    return {split: splits[split] for split in ("train", "val", "test") if split in splits}


def list_class_folders(
    base: Path, *, classes: list[str], under: str = "", address: str = "", root: Path | None = None
) -> FileList:
    """List `base/under/<class>/**` for every class that has a folder there; `root` is the whole set's folder."""
    labels: list[Labels] = []

    def paths() -> Iterator[str]:
        for number, name in enumerate(classes):
            folder = base / under / name
            count = 0
            if folder.is_dir():
                for path in list_images(folder):
                    count += 1
                    yield f"{under}/{name}/{path}" if under else f"{name}/{path}"
            labels.append(np.full(count, number, dtype=np.int32))

    listed = Strings(paths())
    if len(listed) == 0:
        raise _nothing_in(base / under)
    return FileList(
        root or base,
        listed,
        labels=np.concatenate(labels),
        classes=classes,
        address=address,
        base=base,
        is_whole_folder=root is not None,
    )


def _nothing_in(folder: Path) -> DataError:
    if not folder.exists():
        return no_such(folder, kind="folder")
    loose = sum(1 for _ in list_images(folder))
    if not loose:
        return DataError(no_images(folder))
    tables = [table.name for table in tables_in(folder)]
    spreadsheets = [
        entry.name for entry in scan(str(folder)) if Path(entry.name).suffix.lower() in SPREADSHEETS
    ]
    advice = "put the images of each class into a folder with its name"
    if tables:
        advice = f"pass one of the tables with labels in it: {some_of(tables)}"
    elif spreadsheets:
        advice = f"save {some_of(spreadsheets)} as CSV, with the columns path and label"
    else:
        advice += ", or pass a .csv with the columns path and label"
    return DataError(
        f"{printable(str(folder))} contains {counted(loose, 'image')} but no class folders; {advice}"
    )


def open_unlabelled(address: str) -> Source:
    """List every image below a folder, without labels."""
    root = require_path(Path(address))
    if not root.is_dir():
        raise DataError(f"{printable(address)} is not a folder; images without labels are read from a folder")
    paths = Strings(list_images(root))
    if len(paths) == 0:
        raise DataError(no_images(root))
    labels = np.full(len(paths), NO_LABEL, dtype=np.int32)
    return FileList(root, paths, labels=labels, classes=(), address=address)
