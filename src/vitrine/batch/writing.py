"""Compute the parts of a job that are not finished, and write each one once.

Memory is bounded: rows go to the file of their part as row groups of `GROUP_BYTES`, and a few finished parts wait to
be synced or uploaded while the next ones are computed. Batches never cross the border of a part, so a part has
the same bytes whichever process computes it, and after whatever interruption.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from vitrine.batch.columns import parquet_options
from vitrine.batch.parts import Job, PartFolder, PartRecord, input_hash, part_file
from vitrine.data.loading.order import Rows
from vitrine.data.sources.arrow import import_pyarrow
from vitrine.data.sources.source import Source
from vitrine.evaluation.streaming import Computed, Pace, rows_between
from vitrine.runtime.launch import Share
from vitrine.runtime.progress import announced, notice, track

# Bytes of rows that are collected before they are written.
GROUP_BYTES = 32 * 2**20
MOST_GROUP_ROWS = 4096
# Finished parts that are synced or uploaded while the next ones are computed: a disk that is slow for a moment does
# not hold up the model. Each holds at most one group of rows in memory.
MOST_FINISHING = 4
# Reasons that are kept for the report; the rest is counted.
MOST_REASONS = 5

Engine = Callable[[Iterator[Rows], Pace], Iterator[Computed]]
"""Compute the outputs of batches of rows, in order."""


@dataclass(kw_only=True)
class Progress:
    """The share of a job that one process has done."""

    num_computed: int = 0
    num_skipped: int = 0
    """Pictures whose parts were finished before."""
    num_unreadable: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    """The first few pictures that cannot be read, and why."""
    pace: Pace = field(default_factory=Pace)


def write_parts(
    parts: PartFolder,
    source: Source,
    *,
    share: Share,
    engine: Engine,
    schema: Any,
    table_of: Callable[[Computed], Any],
    what: str,
) -> Progress:
    """Compute and write the unfinished parts of this process's share."""
    job, done = parts.job, Progress()
    own = share.of(job.num_parts)
    parts.remove_leftovers(share)
    todo = unfinished(parts, source, own, done)
    total = sum(len(job.rows(number)) for number in own)
    rows = (row for number in todo for row in _batches(job, number))
    done.pace = Pace()
    with (
        announced(what, total=total, done=done.num_skipped) as advance,
        _Writers(parts, source, schema) as writers,
    ):
        outputs = engine(rows, done.pace)
        for number in todo:
            writer = writers.open(number)
            while writer.num_rows < len(job.rows(number)):
                computed = next(outputs)
                writer.add(table_of(computed), num_unreadable=len(computed.failures))
                _note_failures(done, computed, source)
                done.num_computed += len(computed)
                advance(len(computed), str(done.pace))
            writers.finish(writer)
    return done


def unfinished(parts: PartFolder, source: Source, own: Sequence[int], done: Progress) -> list[int]:
    """Return the parts that are left to compute; one whose pictures have changed is computed again."""
    finished = parts.finished(own)
    todo = []
    for number in track(own, "Checking finished parts") if finished else own:
        record = finished.get(number)
        if record is not None and record.input == input_hash(source, parts.job.rows(number)):
            done.num_skipped += record.num_rows
            done.num_unreadable += record.num_unreadable
            continue
        if record is not None:
            notice(f"{record.file} is computed again: its pictures have changed")
            parts.forget(number)
        todo.append(number)
    return todo


def _batches(job: Job, number: int) -> Iterator[Rows]:
    rows = job.rows(number)
    return rows_between(rows.start, rows.stop, batch_size=job.batch_size)


def _note_failures(done: Progress, computed: Computed, source: Source) -> None:
    done.num_unreadable += len(computed.failures)
    for row, why in computed.failures.items():
        if len(done.unreadable) < MOST_REASONS:
            done.unreadable[source.name(computed.start + row)] = why


class _Writers:
    """The part that is being written, and those before it that are being finished, one at a time."""

    def __init__(self, parts: PartFolder, source: Source, schema: Any) -> None:
        self._parts, self._source, self._schema = parts, source, schema
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="vitrine-parts")
        # The first array that pyarrow makes imports pandas, up to two seconds: the workers start meanwhile.
        self._pool.submit(import_pyarrow("writing Parquet parts").array, [0])
        self._open: PartWriter | None = None
        self._finishing: deque[Future[None]] = deque()

    def open(self, number: int) -> "PartWriter":
        # Before its pictures are read: if they change meanwhile, the next run will notice.
        facts = self._pool.submit(input_hash, self._source, self._parts.job.rows(number))
        self._open = PartWriter(self._parts, number, schema=self._schema, facts=facts)
        return self._open

    def finish(self, writer: "PartWriter") -> None:
        """Finish a part in the background; wait if too many are unfinished."""
        while len(self._finishing) >= MOST_FINISHING or (self._finishing and self._finishing[0].done()):
            self._finishing.popleft().result()
        self._open = None
        self._finishing.append(self._pool.submit(writer.finish))

    def __enter__(self) -> "_Writers":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._open is not None:  # interrupted within a part, which is of no use
            self._open.abandon()
        try:
            for finishing in self._finishing:
                finishing.result()
        finally:
            self._pool.shutdown()


class PartWriter:
    """One part while it is written."""

    def __init__(self, parts: PartFolder, number: int, *, schema: Any, facts: Future[str]) -> None:
        self.number, self.num_rows, self.num_unreadable = number, 0, 0
        self._parts, self._facts = parts, facts
        self._held: list[Any] = []
        self._held_bytes = self._held_rows = 0
        self._stack = ExitStack()
        file = self._stack.enter_context(parts.folder.writing(part_file(number)))
        self._file = _Hashing(file)
        parquet = import_pyarrow("writing Parquet parts").parquet
        self._writer = parquet.ParquetWriter(self._file, schema, **parquet_options(schema))

    def add(self, table: Any, *, num_unreadable: int) -> None:
        """Append rows."""
        self.num_rows += table.num_rows
        self.num_unreadable += num_unreadable
        self._held.append(table)
        self._held_bytes += table.nbytes
        self._held_rows += table.num_rows
        if self._held_bytes >= GROUP_BYTES or self._held_rows >= MOST_GROUP_ROWS:
            self._write_group()

    def finish(self) -> None:
        """Close the part, put it in its place and record it."""
        try:
            self._write_group()
            self._writer.close()
        except BaseException:
            self.abandon()
            raise
        self._stack.close()
        rows = self._parts.job.rows(self.number)
        self._parts.finish(
            self.number,
            PartRecord(
                file=part_file(self.number),
                first=rows.start,
                num_rows=self.num_rows,
                num_unreadable=self.num_unreadable,
                bytes=self._file.num_bytes,
                sha256=self._file.digest.hexdigest(),
                input=self._facts.result(),
            ),
        )

    def abandon(self) -> None:
        """Remove what was written."""
        self._file.is_dropping = True
        interruption = InterruptedError()
        with suppress(OSError):  # a full disk, where what is still buffered cannot be written either
            self._stack.__exit__(type(interruption), interruption, None)

    def _write_group(self) -> None:
        if not self._held:
            return
        arrow = import_pyarrow("writing Parquet parts")
        rows = arrow.concat_tables(self._held)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._held, self._held_bytes, self._held_rows = [], 0, 0


class _Hashing:
    """A file that is hashed and counted while it is written."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file, self.digest, self.num_bytes = file, hashlib.sha256(), 0
        # Set when a part is given up: Parquet's writer writes again when it is deleted, to a closed file.
        self.is_dropping = False

    def write(self, data: Any) -> int:
        """Write, hash and count."""
        if not self.is_dropping:
            self._file.write(data)
        self.digest.update(data)
        size = memoryview(data).nbytes
        self.num_bytes += size
        return size

    def flush(self) -> None:
        """Pass on what is buffered."""
        if not self.is_dropping:
            self._file.flush()

    def tell(self) -> int:
        """Return how much was written."""
        return self.num_bytes

    def close(self) -> None:
        """Leave the file open: whoever opened it closes it."""


def metadata_of(job: Job) -> dict[str, str]:
    """Return the metadata in the schema of a part: its job."""
    return {"vitrine": json.dumps(asdict(job), sort_keys=True)}
