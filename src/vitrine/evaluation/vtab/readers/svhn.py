"""SVHN's cropped digits: `train_32x32.mat` and `test_32x32.mat` with X (32, 32, 3, N) and y (N, 1)."""

from pathlib import Path

import numpy as np

from vitrine.data.arrays import ArraySource
from vitrine.data.matlab import read_matlab
from vitrine.data.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.vtab.labels import svhn_digit
from vitrine.evaluation.vtab.tasks import Task

# train_32x32.mat unpacks to 225 MB.
_MOST_BYTES = 2**30


def open_splits(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read both files."""
    files = {split: folder / f"{split}_32x32.mat" for split in ("train", "test")}
    if not any(file.is_file() for file in files.values()):
        return None
    splits: dict[str, Source] = {}
    for split, file in files.items():
        if not file.is_file():
            raise DataError(f"{file} is missing; {task.name} needs both train_32x32.mat and test_32x32.mat")
        arrays = read_matlab(file, most_bytes=_MOST_BYTES)
        if not {"X", "y"} <= set(arrays) or arrays["X"].ndim != 4 or arrays["X"].shape[3] != arrays["y"].size:
            raise DataError(f"{file} does not hold X (32, 32, 3, N) and y (N, 1), as SVHN's files do")
        splits[split] = ArraySource(
            np.ascontiguousarray(arrays["X"].transpose(3, 0, 1, 2)),  # (N, 32, 32, 3)
            labels=svhn_digit(arrays["y"]),
            classes=[str(digit) for digit in range(10)],
            address=str(file),
            root=folder,
            prefix=f"{split}/",
        )
    return splits
