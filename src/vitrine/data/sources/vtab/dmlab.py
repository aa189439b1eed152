"""DMLab's archive: `dmlab-{train,validation,test}.tfrecord*`, read without TensorFlow.

A record is its length (8 bytes), a checksum (4), the data, a checksum (4). The data is a protocol buffer:
features by name, of which `image` is a JPEG and `label` a number.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrine.data.sources.source import Example, Source
from vitrine.data.sources.vtab.tasks import Task
from vitrine.errors import DataError
from vitrine.runtime.progress import track

_PARTS = {"train": "train", "val": "validation", "test": "test"}
_BYTES = 2  # wire type of a length-delimited field
_LARGEST = 2**26  # no frame of DMLab comes near 64 MiB


def open_dmlab(folder: Path, task: Task) -> dict[str, Source] | None:
    """Index the records of the three splits."""
    if not list(folder.glob("dmlab-*.tfrecord*")):
        return None
    splits: dict[str, Source] = {}
    for split, part in _PARTS.items():
        files = sorted(folder.glob(f"dmlab-{part}.tfrecord*"))
        if not files:
            raise DataError(
                f"{folder} has no dmlab-{part}.tfrecord; {task.name} needs train, validation and test"
            )
        splits[split] = RecordSource(files, num_classes=task.num_classes)
    return splits


class RecordSource(Source):
    """JPEGs inside TFRecord files: start and end of each, and its label."""

    def __init__(self, files: list[Path], *, num_classes: int) -> None:
        self.files = files
        self.address, self.root = str(files[0]), files[0].parent
        self.classes = tuple(str(number) for number in range(num_classes))
        rows, labels = [], []
        for number, file in enumerate(track(files, "Indexing records")):
            for start, length, label in read_records(file):
                rows.append((number, start, length))
                labels.append(label)
        self.places = np.array(rows, dtype=np.int64).reshape(-1, 3)
        self.labels = np.array(labels, dtype=np.int32)

    def name(self, index: int) -> str:
        """Return the name of a record: its file and position."""
        file, start, _ = self.places[index]
        return f"{self.files[file].name}@{start}"

    def read(self, index: int) -> Example:
        """Read the JPEG of record `index`."""
        file, start, length = (int(value) for value in self.places[index])
        with self.files[file].open("rb") as opened:
            opened.seek(start)
            data = opened.read(length)
        return Example(data=data, label=self.label(index), name=self.name(index))

    def size(self, index: int) -> int:
        """Bytes of the JPEG."""
        return int(self.places[index, 2])


def read_records(file: Path) -> Iterator[tuple[int, int, int]]:
    """Yield start and length of each record's image in the file, and its label."""
    with file.open("rb") as opened:
        while header := opened.read(12):
            try:
                (length,) = struct.unpack_from("<Q", header)
                start = opened.tell()
                data = opened.read(length) if length <= _LARGEST else b""
                if len(data) != length or len(opened.read(4)) != 4:
                    raise ValueError("the file ends within a record")
                at, size, label = parse_example(data)
            except (struct.error, ValueError, IndexError) as error:
                raise DataError(f"{file} is not a complete TFRecord file of DMLab: {error}") from error
            yield start + at, size, label


def parse_example(data: bytes) -> tuple[int, int, int]:
    """Find the image (start, length) and the label in a serialised tf.train.Example."""
    image: tuple[int, int] | None = None
    label: int | None = None
    for _, start, end in _fields(data, 0, len(data)):  # Example.features
        for _, entry, entry_end in _fields(data, start, end):  # Features.feature: entries of a map
            parts = {number: (a, b) for number, a, b in _fields(data, entry, entry_end)}
            key = data[parts[1][0] : parts[1][1]]
            kind, a, b = next(_fields(data, *parts[2]))  # Feature: bytes_list 1, float_list 2, int64_list 3
            if key == b"image" and kind == 1:
                _, a, b = next(_fields(data, a, b))
                image = (a, b - a)
            elif key == b"label" and kind == 3:
                label = _first_number(data, a)
    if image is None or label is None:
        raise ValueError("a record has no image or no label")
    return *image, label


def _first_number(data: bytes, position: int) -> int:
    tag, position = _varint(data, position)
    if tag & 7 == _BYTES:  # packed: a length comes first
        _, position = _varint(data, position)
    return _varint(data, position)[0]


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each length-delimited field; other fields do not occur at this level."""
    while position < end:
        tag, position = _varint(data, position)
        if tag & 7 != _BYTES:
            raise ValueError(f"unexpected field of wire type {tag & 7}")
        length, position = _varint(data, position)
        if position + length > end:
            raise ValueError("a field reaches beyond its record")
        yield tag >> 3, position, position + length
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")
