"""Batches of uint8 images, in an order that depends on nothing but seed and step.

Threads by default: decoding and resizing release Python's lock, a thread writes straight into the batch (in
pinned memory where the device is CUDA), and nothing is copied or pickled. Processes do the same through
shared memory, for machines with many cores where Python's lock would bind. The numbers are the same.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import numpy as np
import torch

from vitrine.data.order import Rows, check_batch, evaluation_rows, training_rows
from vitrine.data.randomness import uniforms
from vitrine.data.source import NO_LABEL, Source
from vitrine.data.view import View
from vitrine.data.workers import Failures, ProcessWorkers, Task, ThreadWorkers, fill, one_thread
from vitrine.errors import ConfigError, DataError

WorkerKind = Literal["threads", "processes"]
# Images that a worker takes at a time: few enough to share a batch evenly, enough to be worth a message.
_CHUNK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch: images (B, C, H, W) uint8 and labels on the device, and which examples they are.

    Labels are (B,) int64, or (B, K) float of 0 and 1 for multi-label sets. `failures` says by row which
    images could not be read, where the loader was asked to go on; those rows are black.
    """

    images: torch.Tensor
    labels: torch.Tensor
    rows: Rows
    failures: Failures

    def __len__(self) -> int:
        return len(self.rows.indices)


class Loader:
    """Reads batches of one source through one view with workers that live as long as the loader.

    `batch_size` is that of all processes together.
    """

    def __init__(
        self,
        source: Source,
        view: View,
        *,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 2,
        worker_kind: WorkerKind = "threads",
        prefetch_batches: int = 2,
        device: torch.device | str = "cpu",
        keep_going: bool = False,
    ) -> None:
        if num_workers < 0 or prefetch_batches < 1:
            raise ConfigError(
                f"num_workers must be 0 or more and prefetch_batches 1 or more, "
                f"got {num_workers} and {prefetch_batches}"
            )
        if worker_kind not in ("threads", "processes"):
            raise ConfigError(f"worker_kind must be threads or processes, got {worker_kind!r}")
        check_batch(batch_size, rank=rank, world_size=world_size)
        if len(source) == 0:
            raise DataError(f"{source.address} holds no images")
        self.source, self.view = source, view
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        self.device = torch.device(device)
        self.keep_going = keep_going
        self.prefetch_batches = prefetch_batches
        self._workers: ThreadWorkers | ProcessWorkers | None = None
        if num_workers and worker_kind == "threads":
            self._workers = ThreadWorkers(source, view, num_workers=num_workers)
        elif num_workers:
            self._workers = ProcessWorkers(
                source,
                view,
                num_workers=num_workers,
                num_slots=prefetch_batches + 2,
                rows=batch_size // world_size,
            )

    def training_batches(self, *, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """Yield the batches of steps `start_step` up to `stop_step`, or without end."""
        return self._batches(self._training_rows(start_step, stop_step))

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield every image of this process's share exactly once, in order; the last batch may be smaller."""
        return self._batches(
            evaluation_rows(
                length=len(self.source),
                batch_size=self.batch_size // self.world_size,
                rank=self.rank,
                world_size=self.world_size,
            )
        )

    def close(self) -> None:
        """Stop the workers."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _training_rows(self, start_step: int, stop_step: int | None) -> Iterator[Rows]:
        step = start_step
        while stop_step is None or step < stop_step:
            yield training_rows(
                step,
                length=len(self.source),
                batch_size=self.batch_size,
                seed=self.seed,
                rank=self.rank,
                world_size=self.world_size,
            )
            step += 1

    def _batches(self, batches: Iterable[Rows]) -> Iterator[Batch]:
        """Keep `prefetch_batches` under way, and where the device is CUDA one more on its way there."""
        waiting: deque[tuple[Rows, _Pending]] = deque()
        ready: deque[Batch] = deque()
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        ahead = self.prefetch_batches if self._workers is not None else 0
        todo = iter(batches)
        try:
            while True:
                for rows in itertools.islice(todo, ahead + 1 - len(waiting)):
                    waiting.append((rows, self._start(rows)))
                while waiting and len(ready) < (2 if stream and ahead else 1):
                    ready.append(self._finish(*waiting.popleft(), stream=stream))
                if not ready:
                    return
                yield _arrived(ready.popleft(), stream)
        finally:
            for _, pending in waiting:
                pending.abandon()

    def _start(self, rows: Rows) -> "_Pending":
        count = len(rows.indices)
        numbers = None
        if self.view.num_uniforms:
            numbers = uniforms(
                self.seed,
                stream="view",
                epochs=rows.epochs,
                positions=rows.positions,
                count=self.view.num_uniforms,
            )
        tasks = [
            Task(
                start=start,
                indices=rows.indices[start : start + _CHUNK],
                numbers=None if numbers is None else numbers[start : start + _CHUNK],
            )
            for start in range(0, count, _CHUNK)
        ]
        shape = (count, self.view.channels, *self.view.size)
        pin = self.device.type == "cuda"
        return _Pending(self, shape, tasks, pin_memory=pin)

    def _finish(self, rows: Rows, pending: "_Pending", *, stream: torch.cuda.Stream | None) -> Batch:
        images, failures = pending.result()
        if failures and not self.keep_going:
            raise DataError(next(iter(failures.values())))
        labels = self._labels(rows)
        if stream is not None:
            labels = labels.pin_memory()
            with torch.cuda.stream(stream):
                images = images.to(self.device, non_blocking=True)
                labels = labels.to(self.device, non_blocking=True)
        elif self.device.type != "cpu":
            images, labels = images.to(self.device), labels.to(self.device)
        return Batch(images=images, labels=labels, rows=rows, failures=failures)

    def _labels(self, rows: Rows) -> torch.Tensor:
        labels = self.source.labels[rows.indices]
        if not self.source.is_multi_label:
            return torch.from_numpy(labels.astype(np.int64))
        present = np.zeros((len(labels), len(self.source.classes)), dtype=np.float32)
        row, column = np.nonzero(labels != NO_LABEL)
        present[row, labels[row, column]] = 1
        return torch.from_numpy(present)


class _Pending:
    """A batch that the workers are filling."""

    def __init__(
        self, loader: Loader, shape: tuple[int, ...], tasks: list[Task], *, pin_memory: bool
    ) -> None:
        self._ticket = None
        workers = loader._workers
        if workers is not None:
            self._ticket = workers.start(shape, tasks, pin_memory=pin_memory)
            return
        self._images = torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory)
        self._failures: Failures = {}
        with one_thread():
            for task in tasks:
                self._failures |= fill(self._images, task, source=loader.source, view=loader.view)

    def result(self) -> tuple[torch.Tensor, Failures]:
        return self._ticket.result() if self._ticket is not None else (self._images, self._failures)

    def abandon(self) -> None:
        if self._ticket is not None:
            self._ticket.abandon()


def _arrived(batch: Batch, stream: torch.cuda.Stream | None) -> Batch:
    """Let the training stream wait for the copy, and keep the memory until it has been used."""
    if stream is not None:
        current = torch.cuda.current_stream(batch.images.device)
        current.wait_stream(stream)
        batch.images.record_stream(current)
        batch.labels.record_stream(current)
    return batch
