"""The one interface of every data set: a numbered list of examples with a class map.

A source only knows bytes or raw pixels and labels; decoding, order and batches are made elsewhere in this
room. Sources are small (at most 200 bytes a file), picklable, and never write into the data set.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import DataError
from vitrine.spelling import near_match
from vitrine.spelling import printable as printable  # noqa: PLC0414 (this room's own name for it)

Pixels: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int32]

# Stands for "no label" in every label array, and fills up the rows of multi-label arrays.
NO_LABEL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One image as it is stored: an encoded file, or pixels of shape (H, W, C), with its label and name."""

    data: bytes | Pixels
    label: int | tuple[int, ...]
    name: str


class Source(ABC):
    """A numbered list of examples with one class map.

    `labels` is (N,) with one class index an image, or (N, M) for multi-label sets, rows filled with -1.
    `root` is the folder that the set lives in, where nothing may be written, or the file: a list of images may lie in
    anybody's folder. None if it has none.
    """

    classes: tuple[str, ...]
    labels: Labels
    address: str
    root: Path | None = None
    # How much of `train` is held out where the set has no `val` of its own.
    val_fraction: float = 0.1
    # Whether the classes are what the set defines, so that one without images is no mistake of the user's.
    has_fixed_classes: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """Name example `index` as the user knows it: a relative path, mostly."""

    @abstractmethod
    def read(self, index: int) -> Example:
        """Read example `index` as it is stored."""

    @abstractmethod
    def size(self, index: int) -> int:
        """Bytes of example `index` as it is stored."""

    def path(self, index: int) -> Path | None:
        """Return the file that is example `index`, or None where an example is not a file of its own."""
        return None

    def label(self, index: int) -> int | tuple[int, ...]:
        """Class index of example `index`, or all of them for a multi-label set."""
        row = self.labels[index]
        if self.is_multi_label:
            return tuple(int(value) for value in row if value != NO_LABEL)
        return int(row)

    @property
    def is_multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        return self.labels.ndim == 2

    @property
    def is_labelled(self) -> bool:
        """Whether the set has classes at all."""
        return bool(self.classes)

    def counts(self) -> NDArray[np.int64]:
        """Count the images of each class, in the order of `classes`."""
        known = self.labels[self.labels != NO_LABEL]
        return np.bincount(known, minlength=len(self.classes)).astype(np.int64)

    def fingerprint(self) -> str:
        """Hash names, sizes, labels and classes: equal for an unchanged set wherever it is copied to."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update("\0".join(self.classes).encode("utf-8", "surrogateescape"))
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        for index in range(len(self)):
            digest.update(f"{self.name(index)}\0{self.size(index)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def __iter__(self) -> Iterator[Example]:
        return (self.read(index) for index in range(len(self)))


class Subset(Source):
    """Some examples of another source, in the order given, with the same class map."""

    def __init__(self, source: Source, indices: Sequence[int] | NDArray[Any]) -> None:
        chosen = np.asarray(indices, dtype=np.int64)
        if isinstance(source, Subset):  # a part of a part is a part of the whole
            chosen = source.indices[chosen].astype(np.int64)
            source = source.source
        self.source: Source = source
        self.indices: NDArray[Any] = chosen.astype(np.uint32) if len(source) < 2**32 else chosen
        self.classes = source.classes
        self.labels = source.labels[chosen]
        self.address = source.address
        self.root = source.root
        self.has_fixed_classes = source.has_fixed_classes

    def name(self, index: int) -> str:
        """Name example `index`."""
        return self.source.name(int(self.indices[index]))

    def read(self, index: int) -> Example:
        """Read example `index`."""
        example = self.source.read(int(self.indices[index]))
        # The labels here may be numbered by another class map than the parent's.
        return Example(data=example.data, label=self.label(index), name=example.name)

    def size(self, index: int) -> int:
        """Bytes of example `index`."""
        return self.source.size(int(self.indices[index]))

    def path(self, index: int) -> Path | None:
        """Return the file that is example `index`, if it is one."""
        return self.source.path(int(self.indices[index]))

    def fingerprint(self) -> str:
        """Hash the whole set's fingerprint, and which part of it this is."""
        digest = hashlib.blake2b(self.source.fingerprint().encode(), digest_size=16)
        digest.update("\0".join(self.classes).encode("utf-8", "surrogateescape"))
        digest.update(np.ascontiguousarray(self.indices).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


def match_classes(source: Source, classes: Sequence[str]) -> Source:
    """Number the labels by `classes`, matched by name; refuse a label that is not among them."""
    if source.classes == tuple(classes):
        return source
    number = {name: index for index, name in enumerate(classes)}
    used = source.counts() > 0
    for name, is_used in zip(source.classes, used, strict=True):
        if is_used and name not in number:
            close = near_match(name, number)
            hint = f"did you mean {printable(close)}?" if close else f"they are {some_of(classes)}"
            raise DataError(
                f"{printable(source.address)} has the label {printable(name)}, which is not in the list of "
                f"{len(number)} classes; {hint}"
            )
    table = np.array([number.get(name, NO_LABEL) for name in source.classes] + [NO_LABEL], dtype=np.int32)
    matched = Subset(source, np.arange(len(source)))
    matched.classes = tuple(classes)
    matched.labels = table[source.labels]  # -1 picks the last entry: no label stays no label
    return matched


def class_number(label: str, number: Mapping[str, int], *, where: str) -> int:
    """Return the number of a class by its name; refuse a label that is not among them."""
    if label not in number:
        raise DataError(
            f"{printable(where)} has the label {printable(label)}, which is not in the list of "
            f"{len(number)} classes; they are {some_of(list(number))}"
        )
    return number[label]


def sorted_classes(names: Iterable[str]) -> list[str]:
    """Sort class names lexically, or by number where the set numbers its classes itself."""
    unique = set(names)
    if all(name.isdecimal() for name in unique):
        return sorted(unique, key=lambda name: (int(name), name))
    return sorted(unique)


class Strings(Sequence[str]):
    """Many strings in two arrays: their bytes joined, and where each one ends.

    A million paths of 40 characters take 48 MB here and about 200 MB as Python strings in a list.
    """

    def __init__(self, items: Iterable[str] = ()) -> None:
        joined = bytearray()
        self._ends = np.fromiter(_grow(items, joined), dtype=np.int64)
        self._joined = bytes(joined)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # counts from the end where negative, refuses what is outside
        end = int(self._ends[index])
        start = int(self._ends[index - 1]) if index else 0
        return self._joined[start:end].decode("utf-8", "surrogateescape")

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return len(self._joined) + self._ends.nbytes


def some_of(names: Sequence[str], *, most: int = 5) -> str:
    """Name the first few of many for a message, and how many more there are."""
    shown = ", ".join(printable(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def pack_labels(rows: Sequence[int] | Sequence[Sequence[int]], *, is_multi_label: bool) -> Labels:
    """Make the compact label array of a source: (N,), or (N, M) filled with -1."""
    if not is_multi_label:
        return np.asarray(rows, dtype=np.int32)
    sets: list[tuple[int, ...]] = [tuple(row) for row in rows]  # type: ignore[arg-type]
    packed = np.full((len(sets), max((len(row) for row in sets), default=1) or 1), NO_LABEL, dtype=np.int32)
    for number, row in enumerate(sets):
        packed[number, : len(row)] = row
    return packed


def _grow(items: Iterable[str], joined: bytearray) -> Iterator[int]:
    for item in items:
        joined += item.encode("utf-8", "surrogateescape")
        yield len(joined)
