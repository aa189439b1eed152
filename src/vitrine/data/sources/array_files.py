"""Arrays in files of other programs: MATLAB's level-5 .mat, and HDF5, whose images are read row by row."""

import struct
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.sources.source import Example, Labels, Source
from vitrine.errors import DataError, MissingExtraError
from vitrine.spelling import printable

_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_HEADER_BYTES = 128
# Label files are small; one that expands to more is refused.
_MOST_BYTES = 2**26


def read_matlab(file: Path, *, most_bytes: int = _MOST_BYTES) -> dict[str, np.ndarray]:
    """Read the real numeric arrays of a .mat file by name, each of at most `most_bytes`."""
    try:
        data = file.read_bytes()
        arrays: dict[str, np.ndarray] = {}
        position = _HEADER_BYTES
        while position + 8 <= len(data):
            kind, body, position = _element(data, position)
            if kind == _COMPRESSED:
                unpacked = zlib.decompressobj().decompress(body, most_bytes)
                kind, body, _ = _element(unpacked, 0)
            if kind == _MATRIX:
                name, array = _matrix(body)
                arrays[name] = array
    except (OSError, struct.error, zlib.error, ValueError, KeyError) as error:
        raise DataError(f"{printable(str(file))} cannot be read as a MATLAB file: {error}") from error
    return arrays


def _matrix(body: bytes) -> tuple[str, np.ndarray]:
    _, _, position = _element(body, 0)  # flags
    _, sides, position = _element(body, position)
    _, name, position = _element(body, position)
    kind, numbers, _ = _element(body, position)
    shape = struct.unpack(f"<{len(sides) // 4}i", sides)
    values = np.frombuffer(numbers, dtype="<" + _NUMBERS[kind])
    return name.decode("latin1"), values.reshape(shape, order="F")


def _element(data: bytes, position: int) -> tuple[int, bytes, int]:
    """Return kind, content and end of the element at `position`; a small one has its content in its tag."""
    kind, size = struct.unpack_from("<II", data, position)
    if kind >> 16:
        return kind & 0xFFFF, data[position + 4 : position + 4 + (kind >> 16)], position + 8
    end = position + 8 + size
    padded = end if kind == _COMPRESSED else position + 8 + -(-size // 8) * 8
    return kind, data[position + 8 : end], padded


def opened(file: Path) -> AbstractContextManager[Any]:
    """Open an HDF5 file for reading."""
    try:
        import h5py  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError("h5py", extra="vtab", purpose=f"reading {file.name}") from error
    try:
        archive: AbstractContextManager[Any] = h5py.File(file, "r")
    except OSError as error:
        raise DataError(f"{file} cannot be read as HDF5: {error}") from error
    return archive


class Hdf5Source(Source):
    """Images (N, H, W, C) uint8 in one data set of a file; opened at the first read, in each process separately."""

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
