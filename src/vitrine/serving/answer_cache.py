"""Answers by the content of the picture: the same bytes sent to the same weights are computed once.

The cache keeps rows of scores or features by the SHA-256 of the upload, never the upload itself. A reloaded model has
a version of its own, so that no answer outlives the weights that gave it.
"""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

# Size of one entry beside its numbers: key, tensor and dictionary, rounded up.
OVERHEAD_BYTES = 1024
Key: TypeAlias = tuple[int, str, bytes]
"""Version of the model, name of the task, hash of the picture."""


@dataclass
class CacheCounts:
    """Lookups of the cache that found an answer, and that did not."""

    hits: int = 0
    misses: int = 0


class AnswerCache:
    """Answers up to `max_bytes`; the least recently used are dropped first. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.counts = CacheCounts()
        self._rows: OrderedDict[Key, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def key(self, version: int, task: str, data: bytes) -> Key:
        """Return the key of the answer to a picture."""
        return version, task, hashlib.sha256(data).digest()

    def get(self, key: Key) -> Tensor | None:
        """Return the answer, if it is known."""
        with self._lock:
            row = self._rows.get(key)
            if row is None:
                self.counts.misses += 1
                return None
            self.counts.hits += 1
            self._rows.move_to_end(key)
            return row

    def put(self, key: Key, row: Tensor) -> None:
        """Keep an answer, and drop the least recently used ones that no longer fit."""
        size = _size(row)
        if size > self.max_bytes:
            return
        row = row.clone()  # a row of a batch would keep the whole batch in memory
        with self._lock:
            if key in self._rows:
                return
            self._rows[key] = row
            self.held_bytes += size
            while self.held_bytes > self.max_bytes:
                _, dropped = self._rows.popitem(last=False)
                self.held_bytes -= _size(dropped)

    def forget(self, version: int) -> None:
        """Drop the answers of a model that is no longer served."""
        with self._lock:
            for key in [key for key in self._rows if key[0] == version]:
                self.held_bytes -= _size(self._rows.pop(key))


def _size(row: Tensor) -> int:
    return row.numel() * row.element_size() + OVERHEAD_BYTES
