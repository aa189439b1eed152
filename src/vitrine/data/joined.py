"""Several sources with one class map, one after the other."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrine.data.source import NO_LABEL, Example, Source


class Joined(Source):
    """The examples of several sources that share a class map, in order."""

    def __init__(self, sources: Sequence[Source]) -> None:
        first = sources[0]
        assert all(source.classes == first.classes for source in sources)
        self.sources = tuple(sources)
        self.classes = first.classes
        self.address = first.address
        self.root = first.root
        self.has_fixed_classes = first.has_fixed_classes
        self._starts = np.cumsum([0, *(len(source) for source in sources)])
        width = max(source.labels.shape[1] if source.is_multi_label else 0 for source in sources)
        self.labels = np.concatenate([_widened(source.labels, width) for source in sources])

    def name(self, index: int) -> str:
        """Name example `index`."""
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
        """Return the file that is example `index`, if it is one."""
        source, own = self._locate(index)
        return source.path(own)

    def _locate(self, index: int) -> tuple[Source, int]:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.sources[number], index - int(self._starts[number])


def _widened(labels: np.ndarray, width: int) -> np.ndarray:
    if width == 0:
        return labels
    rows = labels if labels.ndim == 2 else labels[:, None]
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=NO_LABEL)
