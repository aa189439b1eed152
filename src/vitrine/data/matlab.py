"""Numbers in MATLAB's level-5 .mat files: as much of the format as the label files of old data sets need."""

import struct
import zlib
from pathlib import Path

import numpy as np

from vitrine.data.source import printable
from vitrine.errors import DataError

_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_HEADER_BYTES = 128
# Label files are small; one that unpacks to more is refused.
_MOST_BYTES = 2**26


def read_matlab(file: Path, *, most_bytes: int = _MOST_BYTES) -> dict[str, np.ndarray]:
    """Read the real numeric arrays of a .mat file by name, each with its own shape and of `most_bytes` at most."""
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
    """Kind, content and end of the element at `position`; a small one holds its content in its tag."""
    kind, size = struct.unpack_from("<II", data, position)
    if kind >> 16:
        return kind & 0xFFFF, data[position + 4 : position + 4 + (kind >> 16)], position + 8
    end = position + 8 + size
    padded = end if kind == _COMPRESSED else position + 8 + -(-size // 8) * 8
    return kind, data[position + 8 : end], padded
