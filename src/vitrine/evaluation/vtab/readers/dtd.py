"""DTD's archive: `images/<texture>/*.jpg` and the first of its ten splits, `labels/{train,val,test}1.txt`."""

from pathlib import Path

import numpy as np

from vitrine.data.file_list import FileList, subfolders
from vitrine.data.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.vtab.tasks import Task


def open_splits(folder: Path, task: Task) -> dict[str, Source] | None:
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
