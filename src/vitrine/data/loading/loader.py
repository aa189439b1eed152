"""Batches of uint8 images, in an order that depends only on seed and step.

Workers are threads by default: decoding and resizing release Python's lock, a thread writes straight into the batch
(in pinned memory for CUDA), and nothing is copied or pickled. Processes do the same through shared memory, for
machines with many cores where Python's lock would limit. The results are the same. In addition, a fraction of the
rows may be decoded on the CUDA device itself (`vitrine.data.loading.device_workers`).
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.loading.device_workers import DeviceWorkers, rows_on_device
from vitrine.data.loading.filling import Failures, Notes, Task, fill, one_thread
from vitrine.data.loading.nvjpeg import Rendered
from vitrine.data.loading.order import Rows, check_batch, evaluation_rows, training_rows, view_numbers
from vitrine.data.loading.workers import Ticket, WorkerKind, start_workers
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.preparing.training_view import Numbers
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.runtime.devices import copy_to_device
from vitrine.runtime.progress import notice

# Images per task of a worker: few enough to divide a batch evenly, enough to be worth a message.
_CHUNK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch: images (B, C, H, W) uint8 and labels on the device, and which examples they are.

    Labels are (B,) int64, or (B, K) float of 0 and 1 for multi-label sets. `failures` gives by row
    the images that could not be read, if the loader was asked to continue; those rows are black. `digests` gives by
    row the SHA-256 of each file that could be read, if the loader was asked for them.
    """

    images: torch.Tensor
    labels: torch.Tensor
    rows: Rows
    failures: Failures
    digests: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows.indices)


class Loader:
    """Reads batches of one source through one view; its workers live as long as the loader.

    `batch_size` counts all processes together. `device_share` is the fraction of rows, from 0 to 1, that a CUDA
    device decodes by nvJPEG; their pixels differ from those of the workers by a few levels. `repeats` is how often a
    training batch holds each of its images. With `alternates_flip`, an image is flipped in every other epoch.
    """

    def __init__(
        self,
        source: Source,
        view: AnyView,
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
        device_share: float = 0.0,
        repeats: int = 1,
        alternates_flip: bool = False,
        wants_digests: bool = False,
    ) -> None:
        if prefetch_batches < 1:
            raise ConfigError(f"prefetch_batches must be 1 or more, got {prefetch_batches}")
        if not 0 <= device_share <= 1:
            raise ConfigError(f"device_share must be from 0 to 1, got {device_share}")
        check_batch(batch_size, rank=rank, world_size=world_size)
        if len(source) == 0:
            raise DataError(f"{source.address} contains no images")
        self.source, self.view = source, view
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        self.device = torch.device(device)
        self.keep_going = keep_going
        self.prefetch_batches = prefetch_batches
        self.device_share, self.wants_digests = device_share, wants_digests
        self.repeats, self.alternates_flip = repeats, alternates_flip
        self._has_warned = False
        # Before the workers: it may raise an error, and processes would have been started for nothing.
        self._device_workers = DeviceWorkers(source, view, device=self.device) if device_share else None
        self._workers = start_workers(
            source, view, worker_kind, num_workers=num_workers, num_slots=prefetch_batches + 2,
            rows=batch_size // world_size,
        )  # fmt: skip

    def training_batches(self, *, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """Yield the batches of steps `start_step` up to `stop_step`, or without end."""
        return self._batches(self._training_rows(start_step, stop_step))

    def evaluation_batches(self) -> Iterator[Batch]:
        """Yield every image of this process exactly once, in order; the last batch may be smaller."""
        return self.batches_of(
            evaluation_rows(
                length=len(self.source),
                batch_size=self.batch_size // self.world_size,
                rank=self.rank,
                world_size=self.world_size,
            )
        )

    def batches_of(self, batches: Iterable[Rows]) -> Iterator[Batch]:
        """Yield the batches of these rows, in this order, reading ahead from one to the next."""
        return self._batches(batches)

    def close(self) -> None:
        """Stop the workers."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        if self._device_workers is not None:
            self._device_workers.close()
            self._device_workers = None

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
                repeats=self.repeats,
            )
            step += 1

    def _batches(self, batches: Iterable[Rows]) -> Iterator[Batch]:
        """Keep `prefetch_batches` in progress, and on CUDA one more being copied there."""
        waiting: deque[tuple[Rows, _Pending]] = deque()
        ready: deque[Batch] = deque()
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        ahead = self.prefetch_batches if self._workers or self._device_workers else 0
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
        numbers = None
        if self.view.num_uniforms:
            numbers = view_numbers(
                rows, seed=self.seed, count=self.view.num_uniforms, alternates_flip=self.alternates_flip
            )
        return _Pending(self, rows, numbers)

    def _finish(self, rows: Rows, pending: "_Pending", *, stream: torch.cuda.Stream | None) -> Batch:
        images, rendered, notes = pending.result()
        if notes.failures and not self.keep_going:
            raise DataError(notes.failures[min(notes.failures)])
        self._warn(rendered)
        labels = self._labels(rows)
        if stream is not None:
            labels = labels.pin_memory()
            with torch.cuda.stream(stream):
                images = images.to(self.device, non_blocking=True)
                labels = labels.to(self.device, non_blocking=True)
                if rendered is not None:
                    images = pending.in_order(images, rendered.images)
                    rendered.images.record_stream(stream)
        else:
            if self.device.type != "cpu":
                images, labels = images.to(self.device), labels.to(self.device)
            if rendered is not None:
                images = pending.in_order(images, rendered.images)
        return Batch(images=images, labels=labels, rows=rows, failures=notes.failures, digests=notes.digests)

    def _warn(self, rendered: Rendered | None) -> None:
        """Warn once if nvJPEG cannot decode most files: they would be slow for no visible reason."""
        if rendered is not None and not self._has_warned and 2 * rendered.num_by_cpu > len(rendered.images):
            self._has_warned = True
            notice(
                "nvJPEG cannot decode most of these files (other formats; progressive, grey or rotated JPEGs), so "
                "two threads decode them on the CPU; with device_share 0 the workers do"
            )

    def _labels(self, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(self.source.targets(rows.indices))


class _Pending:
    """A batch in progress: some rows on the device, the others by the workers, stored together."""

    def __init__(self, loader: Loader, rows: Rows, numbers: Numbers | None) -> None:
        self._ticket: Ticket | None = None
        self._future: Future[Rendered] | None = None
        self._notes = Notes()
        is_device = rows_on_device(rows.positions, share=loader.device_share)
        self._rows, self._device_rows = np.flatnonzero(~is_device), np.flatnonzero(is_device)
        if loader._device_workers is not None and len(self._device_rows):
            assert numbers is not None
            self._future = loader._device_workers.start(
                rows.indices[self._device_rows], numbers[self._device_rows]
            )
        tasks = tasks_of(
            rows.indices[self._rows],
            None if numbers is None else numbers[self._rows],
            wants_digests=loader.wants_digests,
        )
        shape = (len(self._rows), *loader.view.shape)
        pin_memory = loader.device.type == "cuda"
        if loader._workers is not None and tasks:
            self._ticket = loader._workers.start(shape, tasks, pin_memory=pin_memory)
            return
        self._images = torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory)
        with one_thread():
            for task in tasks:
                self._notes.add(fill(self._images, task, source=loader.source, view=loader.view))

    def result(self) -> tuple[torch.Tensor, Rendered | None, Notes]:
        """Wait for the rows of the workers and of the device; return both and the remarks on rows of the batch."""
        images, own = self._ticket.result() if self._ticket else (self._images, self._notes)
        notes = Notes(
            {int(self._rows[row]): reason for row, reason in own.failures.items()},
            {int(self._rows[row]): digest for row, digest in own.digests.items()},
        )
        if self._future is None:
            return images, None, notes
        rendered = self._future.result()
        notes.failures |= {int(self._device_rows[row]): reason for row, reason in rendered.failures.items()}
        return images, rendered, notes

    def in_order(self, images: torch.Tensor, rendered: torch.Tensor) -> torch.Tensor:
        """Merge the rows of both in the order of the batch."""
        place = np.argsort(np.concatenate([self._rows, self._device_rows]))
        return torch.cat([images, rendered]).index_select(0, copy_to_device(place, rendered.device))

    def abandon(self) -> None:
        if self._ticket is not None:
            self._ticket.abandon()
        if self._future is not None:
            self._future.cancel()


def tasks_of(
    indices: NDArray[np.int64], numbers: Numbers | None, *, wants_digests: bool = False
) -> list[Task]:
    """Divide a batch into tasks for the workers."""
    return [
        Task(
            start=start,
            indices=indices[start : start + _CHUNK],
            numbers=None if numbers is None else numbers[start : start + _CHUNK],
            wants_digests=wants_digests,
        )
        for start in range(0, len(indices), _CHUNK)
    ]


def _arrived(batch: Batch, stream: torch.cuda.Stream | None) -> Batch:
    """Let the training stream wait for the copy, and keep the memory until it is used."""
    if stream is not None:
        current = torch.cuda.current_stream(batch.images.device)
        current.wait_stream(stream)
        batch.images.record_stream(current)
        batch.labels.record_stream(current)
    return batch
