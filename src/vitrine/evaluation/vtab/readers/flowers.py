"""Oxford Flowers 102: `jpg/`, `imagelabels.mat`, `setid.mat` with its own train, val and test."""

from pathlib import Path

import numpy as np

from vitrine.data.file_list import FileList
from vitrine.data.matlab import read_matlab
from vitrine.data.source import Source, Subset
from vitrine.errors import DataError
from vitrine.evaluation.vtab.tasks import Task

_SETS = {"train": "trnid", "val": "valid", "test": "tstid"}


def open_splits(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read labels and split."""
    files = [folder / "imagelabels.mat", folder / "setid.mat"]
    if not any(file.is_file() for file in files):
        return None
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is missing; {task.name} needs imagelabels.mat and setid.mat")
    arrays = read_matlab(files[0]) | read_matlab(files[1])
    missing = [name for name in ("labels", *_SETS.values()) if name not in arrays]
    if missing:
        raise DataError(
            f"{folder} has no {missing[0]!r} in its .mat files; they are not those of {task.name}"
        )
    whole = FileList(
        folder,
        (f"jpg/image_{number:05d}.jpg" for number in range(1, arrays["labels"].size + 1)),
        labels=arrays["labels"].ravel().astype(np.int32) - 1,
        classes=[str(number) for number in range(1, task.num_classes + 1)],
    )
    return {
        split: Subset(whole, np.sort(arrays[name].ravel().astype(np.int64)) - 1)
        for split, name in _SETS.items()
    }
