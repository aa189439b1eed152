"""The one interface of every data set: a numbered list of examples with a class map.

A source knows bytes or raw pixels, and labels; decoding, order and batches are the work of other packages. Sources
are small (at most 200 bytes per file), picklable, and never write into the data set.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import Annotation, DataTask
from vitrine.data.decoding.image_file import Pixels
from vitrine.errors import DataError

Labels: TypeAlias = NDArray[np.int32]

ALL = "all"
# Names of a split on disk, and our name for it.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
# Means "no label" in every label array, and pads the rows of multi-label arrays.
NO_LABEL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One image as it is stored: an encoded file, or pixels of shape (H, W, C), with its label and name."""

    data: bytes | Pixels
    label: int | tuple[int, ...]
    name: str


class Source(ABC):
    """A numbered list of examples with one class map.

    `labels` is (N,) with one class index per image, or (N, M) for multi-label sets, rows padded with -1.
    `root` is the folder of the set, where nothing may be written, or its file (a list of images may lie in a folder
    that is used for other things); None if it has neither.
    """

    classes: tuple[str, ...]
    labels: Labels
    address: str
    root: Path | None = None
    # Fraction of `train` to hold out if the set has no `val` of its own.
    val_fraction: float = 0.1
    # The number to predict for each image (N,) float32, if labels are measurements and not classes. The set then has
    # one class, the name of the measurement, which every image has.
    values: NDArray[np.float32] | None = None
    # Whether the set defines its classes, so that a class without images is not a mistake.
    has_fixed_classes: bool = False
    # The kind of labels. Unless these are classes of whole pictures, `annotation` has the labels, and
    # `labels` is a column of -1.
    task: DataTask = "classes"

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the name of example `index` as the user knows it, usually a relative path."""

    @abstractmethod
    def read(self, index: int) -> Example:
        """Read example `index` as it is stored."""

    @abstractmethod
    def size(self, index: int) -> int:
        """Bytes of example `index` as it is stored."""

    def path(self, index: int) -> Path | None:
        """Return the file of example `index`, or None if an example is not a file of its own."""
        return None

    def annotation(self, index: int) -> Annotation:
        """Read the mask or the boxes of example `index`, for sets that have them."""
        raise DataError(f"{self.address} has no masks and no boxes")

    def label(self, index: int) -> int | tuple[int, ...]:
        """Return the class index of example `index`, or all of them for a multi-label set."""
        row = self.labels[index]
        if self.is_multi_label:
            return tuple(int(value) for value in row if value != NO_LABEL)
        return int(row)

    @property
    def is_multi_label(self) -> bool:
        """Whether an image may have several labels, or none."""
        return self.labels.ndim == 2

    @property
    def is_numeric(self) -> bool:
        """Whether labels are numbers to predict, not classes."""
        return self.values is not None

    @property
    def is_labelled(self) -> bool:
        """Whether the set has classes."""
        return bool(self.classes)

    def targets(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the classes of some images for a loss: numbers (B,); with several labels rows (B, K) of 0 and 1.

        Measurements are columns (B, 1).
        """
        if self.values is not None:
            return self.values[indices][:, None]
        labels = self.labels[indices]
        if not self.is_multi_label:
            return labels.astype(np.int64)
        present = np.zeros((len(labels), len(self.classes)), dtype=np.float32)
        row, column = np.nonzero(labels != NO_LABEL)
        present[row, labels[row, column]] = 1
        return present

    def counts(self) -> NDArray[np.int64]:
        """Count the images of each class, in the order of `classes`."""
        known = self.labels[self.labels != NO_LABEL]
        return np.bincount(known, minlength=len(self.classes)).astype(np.int64)

    def fingerprint(self) -> str:
        """Hash names, sizes, labels and classes: the same for an unchanged set, wherever it is copied."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update("\0".join(self.classes).encode("utf-8", "surrogateescape"))
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        if self.values is not None:
            digest.update(self.values.tobytes())
        for index in range(len(self)):
            digest.update(f"{self.name(index)}\0{self.size(index)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def __iter__(self) -> Iterator[Example]:
        return (self.read(index) for index in range(len(self)))


class Subset(Source):
    """Some examples of another source, in a given order, with the same class map."""

    def __init__(self, source: Source, indices: Sequence[int] | NDArray[Any]) -> None:
        chosen = np.asarray(indices, dtype=np.int64)
        if isinstance(source, Subset):  # a subset of a subset refers to the whole set
            chosen = source.indices[chosen].astype(np.int64)
            source = source.source
        self.source: Source = source
        self.indices: NDArray[Any] = chosen.astype(np.uint32) if len(source) < 2**32 else chosen
        self.classes = source.classes
        self.labels = source.labels[chosen]
        self.values = None if source.values is None else source.values[chosen]
        self.address = source.address
        self.root = source.root
        self.has_fixed_classes = source.has_fixed_classes
        self.task = source.task

    def name(self, index: int) -> str:
        """Return the name of example `index`."""
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
        """Return the file of example `index`, if it has one."""
        return self.source.path(int(self.indices[index]))

    def annotation(self, index: int) -> Annotation:
        """Read the mask or the boxes of example `index`."""
        return self.source.annotation(int(self.indices[index]))

    def fingerprint(self) -> str:
        """Hash the fingerprint of the whole set and the choice of examples."""
        digest = hashlib.blake2b(self.source.fingerprint().encode(), digest_size=16)
        digest.update("\0".join(self.classes).encode("utf-8", "surrogateescape"))
        digest.update(np.ascontiguousarray(self.indices).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


class ConcatSource(Source):
    """The examples of several sources that share a class map, in order."""

    def __init__(self, sources: Sequence[Source]) -> None:
        first = sources[0]
        assert all(source.classes == first.classes for source in sources)
        self.sources = tuple(sources)
        self.classes = first.classes
        self.address = first.address
        self.root = first.root
        self.has_fixed_classes = first.has_fixed_classes
        self.task = first.task
        self._starts = np.cumsum([0, *(len(source) for source in sources)])
        width = max(source.labels.shape[1] if source.is_multi_label else 0 for source in sources)
        self.labels = np.concatenate([_widened(source.labels, width) for source in sources])
        if first.values is not None:
            self.values = np.concatenate([source.values for source in sources if source.values is not None])

    def name(self, index: int) -> str:
        """Return the name of example `index`."""
        source, own = self._locate(index)
        return source.name(own)

    def read(self, index: int) -> Example:
        """Read example `index`."""
        source, own = self._locate(index)
        example = source.read(own)
        return Example(data=example.data, label=self.label(index), name=example.name)

    def size(self, index: int) -> int:
        """Bytes of example `index`."""
        source, own = self._locate(index)
        return source.size(own)

    def path(self, index: int) -> Path | None:
        """Return the file of example `index`, if it has one."""
        source, own = self._locate(index)
        return source.path(own)

    def annotation(self, index: int) -> Annotation:
        """Read the mask or the boxes of example `index`."""
        source, own = self._locate(index)
        return source.annotation(own)

    def _locate(self, index: int) -> tuple[Source, int]:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.sources[number], index - int(self._starts[number])


def _widened(labels: np.ndarray, width: int) -> np.ndarray:
    if width == 0:
        return labels
    rows = labels if labels.ndim == 2 else labels[:, None]
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=NO_LABEL)
