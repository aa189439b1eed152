"""Images and labels in HDF5 files, read row by row."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.source import Example, Labels, Source
from vitrine.errors import DataError, MissingExtraError


def opened(file: Path) -> AbstractContextManager[Any]:
    """Open an HDF5 file for reading."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("h5py", extra="vtab", purpose=f"reading {file.name}") from error
    try:
        archive: AbstractContextManager[Any] = h5py.File(file, "r")
    except OSError as error:
        raise DataError(f"{file} cannot be read as HDF5: {error}") from error
    return archive


class Hdf5Source(Source):
    """Images (N, H, W, C) uint8 in one data set of a file; opened when first read, in each process anew."""

    def __init__(self, file: Path, key: str, *, labels: Labels, classes: Sequence[str]) -> None:
        self.file, self.key = file, key
        self.labels, self.classes = labels, tuple(classes)
        self.address, self.root = str(file), file.parent
        self._archive: Any = None
        with opened(file) as archive:
            if key not in archive or len(archive[key]) != len(labels) or archive[key].dtype != np.uint8:
                raise DataError(f"{file} has no {key!r} with {len(labels)} images of uint8")
            self._row_bytes = int(np.prod(archive[key].shape[1:]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}

    def name(self, index: int) -> str:
        """Name image `index` by its row."""
        return f"{self.file.name}/{index:06d}"

    def read(self, index: int) -> Example:
        """Read row `index`."""
        if self._archive is None:
            self._archive = opened(self.file).__enter__()
        return Example(
            data=np.asarray(self._archive[self.key][index]), label=self.label(index), name=self.name(index)
        )

    def size(self, index: int) -> int:
        """Bytes of one row: the same for all."""
        return self._row_bytes
