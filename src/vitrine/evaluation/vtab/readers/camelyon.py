"""PatchCamelyon: `camelyonpatch_level_2_split_{train,valid,test}_{x,y}.h5`."""

from pathlib import Path

import numpy as np

from vitrine.data.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.vtab.readers.hdf5 import Hdf5Source, opened
from vitrine.evaluation.vtab.tasks import Task

_PARTS = {"train": "train", "val": "valid", "test": "test"}
_NAME = "camelyonpatch_level_2_split_{part}_{what}.h5"


def open_splits(folder: Path, task: Task) -> dict[str, Source] | None:
    """Open the three pairs of files."""
    if not list(folder.glob(_NAME.format(part="*", what="*"))):
        return None
    splits: dict[str, Source] = {}
    for split, part in _PARTS.items():
        images, answers = (folder / _NAME.format(part=part, what=what) for what in ("x", "y"))
        for file in (images, answers):
            if not file.is_file():
                packed = " (unpack it from the .gz)" if file.with_name(file.name + ".gz").is_file() else ""
                raise DataError(f"{file} is missing{packed}; {task.name} needs all six files")
        with opened(answers) as archive:
            labels = np.asarray(archive["y"]).ravel().astype(np.int32)
        splits[split] = Hdf5Source(images, "x", labels=labels, classes=("0", "1"))
    return splits
