"""Nearest neighbours on disk: one vector per picture in segments of bounded size, searched in place.

    index.json                the model, and the segments
    vectors-00000.faiss       unit vectors in half precision: below `EXACT` in one list, else by nearest centre
    names-00000.parquet       path and key of each picture of the segment, in its order
    removed.npy               numbers of pictures that are gone or have changed

A segment is built in memory and never changed; small ones are joined when others are added. Searching maps the files,
so memory holds what the system keeps of them. Cosines are exact products of the stored vectors; lists are approximate
only in which vectors they compare. Decision 0019 compares the libraries.

Shapes: N pictures, D features, Q queries, k neighbours.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.batch.index_segment import CHUNK, IndexRecord, Named, Segment, Vectors, built, import_faiss
from vitrine.data.sources.arrow import import_pyarrow
from vitrine.errors import ConfigError, DataError
from vitrine.runtime.array_file import save_array
from vitrine.runtime.files import parse_json, write_atomically
from vitrine.spelling import printable

RECORD, REMOVED = "index.json", "removed.npy"
# Vectors of one segment in half precision, while it is built; as much again is taken by its lists.
SEGMENT_BYTES = 2**29
PROBES = 16
_NAMES_PER_GROUP = 10_000


class VectorIndex:
    """An index in a folder. Opening it costs nothing: segments are opened when they are searched."""

    def __init__(self, folder: Path, record: IndexRecord) -> None:
        self.folder, self.record = folder, record
        self.probes = PROBES
        self._opened: dict[int, Any] = {}

    @classmethod
    def open(cls, folder: Path) -> "VectorIndex":
        """Open an index that `vitrine index` built."""
        try:
            fields = parse_json((folder / RECORD).read_bytes())
            segments = tuple(Segment(**one) for one in fields.pop("segments"))
            return cls(folder, IndexRecord(**fields, segments=segments))
        except FileNotFoundError:
            raise DataError(f"{printable(str(folder))} is not an index: there is no {RECORD} in it") from None
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{printable(str(folder))}/{RECORD} is damaged; build the index again") from error

    def __len__(self) -> int:
        return sum(segment.count for segment in self.record.segments)

    @cached_property
    def removed(self) -> NDArray[np.int64]:
        """Numbers of pictures that are gone, sorted."""
        file = self.folder / REMOVED
        return np.load(file, allow_pickle=False) if file.is_file() else np.zeros(0, dtype=np.int64)

    def live_keys(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return keys and numbers of the pictures that are not removed."""
        parquet = import_pyarrow("a search index", extra="search").parquet
        keys = [
            parquet.read_table(self._names(segment), columns=["key"])["key"].to_numpy()
            for segment in self.record.segments
        ]
        every = np.concatenate([np.zeros(0, dtype=np.int64), *keys])
        numbers = np.setdiff1d(np.arange(len(every)), self.removed)
        return every[numbers], numbers

    def add(self, chunks: Iterable[Named]) -> int:
        """Add pictures as new segments, join small ones, and return how many were added."""
        added, held = 0, list[Named]()
        most = max(1, SEGMENT_BYTES // (2 * self.record.width))
        for chunk in chunks:
            held.append(replace(chunk, vectors=chunk.vectors.astype(np.float16)))
            if sum(len(one.names) for one in held) >= most:
                added += self._write(held)
                held = []
        added += self._write(held)
        self._join_small(most)
        return added

    def remove(self, numbers: NDArray[np.int64]) -> None:
        """Exclude pictures from all results."""
        if len(numbers):
            removed = np.union1d(self.removed, numbers)
            with write_atomically(self.folder / REMOVED) as file:
                save_array(file, removed)
            self.__dict__.pop("removed", None)

    def search(self, queries: Vectors, count: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Return cosines (Q, k) and numbers (Q, k) of the nearest pictures, nearest first; -1 if there are none."""
        if queries.shape[1] != self.record.width:
            raise ConfigError(f"queries have {queries.shape[1]} features, the index {self.record.width}")
        spare = min(len(self.removed), 64)  # so that enough remain without the removed ones
        results = [(np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64))]
        for segment in self.record.segments:
            cosines, rows = self._segment(segment).search(
                np.ascontiguousarray(queries, dtype=np.float32), min(count + spare, segment.count)
            )
            numbers = np.where(rows < 0, -1, rows + segment.first)
            cosines = np.where((rows < 0) | np.isin(numbers, self.removed), -np.inf, cosines)
            results.append((cosines, numbers))
        cosines = np.concatenate([one for one, _ in results], axis=1)
        numbers = np.concatenate([one for _, one in results], axis=1)
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        best = np.take_along_axis(cosines, order, axis=1)
        return best, np.where(np.isinf(best), -1, np.take_along_axis(numbers, order, axis=1))

    def names(self, numbers: Sequence[int]) -> list[str]:
        """Return the paths of pictures by their numbers."""
        parquet = import_pyarrow("a search index", extra="search").parquet
        names: dict[int, str] = {}
        by_group: dict[tuple[int, int], list[int]] = {}
        for number in set(numbers):
            segment = next(one for one in reversed(self.record.segments) if one.first <= number)
            group = (number - segment.first) // _NAMES_PER_GROUP
            by_group.setdefault((segment.number, group), []).append(number)
        segments = {segment.number: segment for segment in self.record.segments}
        for (which, group), wanted in sorted(by_group.items()):
            file = parquet.ParquetFile(self._names(segments[which]))
            column = file.read_row_group(group, columns=["path"])["path"]
            for number in wanted:
                names[number] = column[number - segments[which].first - group * _NAMES_PER_GROUP].as_py()
        return [names[number] for number in numbers]

    def paths(self) -> Iterator[tuple[int, list[str]]]:
        """Read all paths in order, a group at a time with the number of its first picture."""
        for segment in self.record.segments:
            file = import_pyarrow("a search index", extra="search").parquet.ParquetFile(self._names(segment))
            for group in range(file.num_row_groups):
                column = file.read_row_group(group, columns=["path"])["path"]
                yield segment.first + group * _NAMES_PER_GROUP, column.to_pylist()

    def vectors(self) -> Iterator[tuple[int, Vectors]]:
        """Read all vectors in order, a chunk at a time with the number of its first picture."""
        for segment in self.record.segments:
            for start in range(0, segment.count, CHUNK):
                yield segment.first + start, self._rows(segment, start, min(CHUNK, segment.count - start))

    def _rows(self, segment: Segment, start: int, count: int) -> Vectors:
        index = self._segment(segment)
        rows: Vectors = index.reconstruct_n(start, count)
        return rows

    def _segment(self, segment: Segment) -> Any:
        if segment.number not in self._opened:
            faiss = import_faiss()
            file = self.folder / f"vectors-{segment.number:05d}.faiss"
            try:
                index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
            except RuntimeError as error:
                raise DataError(f"{printable(str(file))} cannot be read: build the index again") from error
            if hasattr(index, "nprobe"):
                index.make_direct_map()
            self._opened[segment.number] = index
        index = self._opened[segment.number]
        if hasattr(index, "nprobe"):
            index.nprobe = self.probes
        return index

    def _write(self, held: Sequence[Named]) -> int:
        count = sum(len(one.names) for one in held)
        if not count:
            return 0
        number = 1 + max((segment.number for segment in self.record.segments), default=-1)
        segment = Segment(number=number, first=len(self), count=count)
        self._write_segment(segment, held)
        self._save((*self.record.segments, segment))
        return count

    def _write_segment(self, segment: Segment, held: Sequence[Named]) -> None:
        arrow = import_pyarrow("a search index", extra="search")
        self.folder.mkdir(parents=True, exist_ok=True)
        index = built([one.vectors for one in held], width=self.record.width, count=segment.count)
        with write_atomically(self.folder / f"vectors-{segment.number:05d}.faiss") as file:
            import_faiss().write_index(index, import_faiss().PyCallbackIOWriter(file.write))
        table = arrow.table(
            {
                "path": [name for one in held for name in one.names],
                "key": np.concatenate([one.keys for one in held]),
            }
        )
        with write_atomically(self._names(segment)) as file:
            arrow.parquet.write_table(table, file, row_group_size=_NAMES_PER_GROUP, compression="zstd")

    def _join_small(self, most: int) -> None:
        """Join the last two segments as long as they are of similar size, so that there are never many."""
        while len(self.record.segments) > 1:
            *others, before, last = self.record.segments
            if 2 * last.count < before.count or before.count + last.count > most:
                return
            number = last.number + 1
            merged = Segment(number=number, first=before.first, count=before.count + last.count)
            self._write_segment(merged, [self._named(before), self._named(last)])
            self._save((*others, merged))
            for old in (before, last):
                self._opened.pop(old.number, None)
                self._names(old).unlink()
                (self.folder / f"vectors-{old.number:05d}.faiss").unlink()

    def _named(self, segment: Segment) -> Named:
        table = import_pyarrow("a search index", extra="search").parquet.read_table(self._names(segment))
        return Named(
            vectors=self._rows(segment, 0, segment.count),
            names=table["path"].to_pylist(),
            keys=table["key"].to_numpy(),
        )

    def _save(self, segments: tuple[Segment, ...]) -> None:
        self.record = replace(self.record, segments=segments)
        with write_atomically(self.folder / RECORD, mode="w") as file:
            json.dump(asdict(self.record), file, indent=1)

    def _names(self, segment: Segment) -> Path:
        return self.folder / f"names-{segment.number:05d}.parquet"
