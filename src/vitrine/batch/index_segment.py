"""One segment of an index on disk: its record, and the lists that faiss builds of its vectors.

Shapes: N pictures, D features.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.runtime.optional import optional

# In segments of at most this many vectors all are compared: a few milliseconds per query.
EXACT = 20_000
# Lists per segment over the square root of its size; vectors per list and rounds of k-means to find their centres.
_LISTS_PER_ROOT, _SAMPLES_PER_LIST, _ROUNDS = 2, 40, 10
CHUNK = 50_000
Vectors = NDArray[Any]
"""Unit vectors; in half precision while they wait."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive pictures of an index: the number in its file names, its first picture and its size."""

    number: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class IndexRecord:
    """The model that an index was built with, and its segments."""

    model: str
    weights: str
    precision: str
    width: int
    segments: tuple[Segment, ...] = ()
    version: int = 1
    shape: Mapping[str, Any] | None = None
    """The shape in which the model saw the pictures (`InputShape`) if not its own; searches use the same."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """Pictures to add: unit vectors (N, D), and the path and key of each."""

    vectors: Vectors
    names: Sequence[str]
    keys: NDArray[np.int64]


def built(parts: Sequence[Vectors], *, width: int, count: int) -> Any:
    """Build the lists of one segment: exact below `EXACT`, else by nearest centre."""
    faiss = import_faiss()
    half = faiss.ScalarQuantizer.QT_fp16
    if count < EXACT:
        index = faiss.IndexScalarQuantizer(width, half, faiss.METRIC_INNER_PRODUCT)
    else:
        num_lists = int(_LISTS_PER_ROOT * count**0.5)
        centres = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFScalarQuantizer(
            centres, width, num_lists, half, faiss.METRIC_INNER_PRODUCT, False
        )
        index.own_fields = True
        centres.this.disown()
        index.cp.niter, index.cp.seed, index.cp.spherical = _ROUNDS, 0, True
        sample = _sample(parts, min(count, _SAMPLES_PER_LIST * num_lists), count)
        index.train(sample)
    for part in parts:
        for start in range(0, len(part), CHUNK):
            index.add(np.ascontiguousarray(part[start : start + CHUNK], dtype=np.float32))
    return index


def key_of(name: str, facts: str) -> int:
    """Return a number for a picture and its version: two versions share one with a probability of 2^-64."""
    raw = f"{name}\0{facts}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little", signed=True)


def unit(vectors: NDArray[Any]) -> Vectors:
    """Scale vectors (N, D) to length 1."""
    rows = np.asarray(vectors, dtype=np.float32)
    scaled: Vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return scaled


def _sample(parts: Sequence[Vectors], wanted: int, count: int) -> Vectors:
    step = count / wanted
    chosen = (np.arange(wanted) * step).astype(np.int64)
    starts = np.cumsum([0, *map(len, parts)])
    rows = [
        part[chosen[(chosen >= start) & (chosen < start + len(part))] - start]
        for start, part in zip(starts[:-1], parts, strict=True)
    ]
    return np.ascontiguousarray(np.concatenate(rows), dtype=np.float32)


def import_faiss() -> Any:
    """Import faiss, or say which extra installs it."""
    return optional("faiss", extra="search", purpose="a search index")
