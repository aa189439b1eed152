"""One task of a worker: read, decode and write a few rows of a batch, with remarks on them."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.annotated_view import ANNOTATED_VIEWS, AnyView
from vitrine.data.sources.source import Source
from vitrine.errors import VitrineError

# Row of the batch -> why its image could not be read.
Failures = dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Consecutive rows of one batch: the first row, the examples, and their random numbers."""

    start: int
    indices: NDArray[np.int64]
    numbers: NDArray[np.float64] | None
    wants_digests: bool = False


@dataclass(slots=True)
class Notes:
    """Remarks on rows of a batch: why some could not be read, and the SHA-256 of what was read, where wanted."""

    failures: Failures = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Notes") -> None:
        """Take over the remarks on other rows."""
        self.failures |= other.failures
        self.digests |= other.digests


def fill(images: torch.Tensor, task: Task, *, source: Source, view: AnyView) -> Notes:
    """Read, decode and write the rows of one task into `images`; rows that fail are black and listed."""
    notes = Notes()
    for offset, index in enumerate(task.indices):
        row = task.start + offset
        out = images[row]
        try:
            example = source.read(int(index))
            if task.wants_digests:
                notes.digests[row] = digest_of(example.data)
            numbers = None if task.numbers is None else task.numbers[offset]
            if isinstance(view, ANNOTATED_VIEWS):
                annotation = source.annotation(int(index))
                view.render_annotated(example.data, annotation, name=example.name, numbers=numbers, out=out)
            else:
                view.render(example.data, name=example.name, numbers=numbers, out=out)
        except VitrineError as error:
            out.zero_()
            notes.failures[row] = str(error)
    return notes


def digest_of(data: bytes | Pixels) -> str:
    """Return the SHA-256 of an encoded file, or of the pixels of a picture without one."""
    return hashlib.sha256(data if isinstance(data, bytes) else np.ascontiguousarray(data).data).hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from using several cores for one small image inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
