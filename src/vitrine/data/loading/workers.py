"""Pools that fill batches with decoded images: threads, or processes through shared memory."""

import multiprocessing
import queue
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.preparing.mask_view import AnyView, MaskView
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError, VitrineError

WorkerKind = Literal["threads", "processes"]

# Row of the batch -> why its image could not be read.
Failures = dict[int, str]
# Seconds without an answer before checking that the processes are alive.
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Consecutive rows of one batch: the first row, the examples, and their random numbers."""

    start: int
    indices: NDArray[np.int64]
    numbers: NDArray[np.float64] | None


def fill(images: torch.Tensor, task: Task, *, source: Source, view: AnyView) -> Failures:
    """Read, decode and write the rows of one task into `images`; rows that fail are black and listed."""
    failures: Failures = {}
    for offset, index in enumerate(task.indices):
        out = images[task.start + offset]
        try:
            example = source.read(int(index))
            numbers = None if task.numbers is None else task.numbers[offset]
            if isinstance(view, MaskView):
                annotation = source.annotation(int(index))
                view.render_annotated(example.data, annotation, name=example.name, numbers=numbers, out=out)
            else:
                view.render(example.data, name=example.name, numbers=numbers, out=out)
        except VitrineError as error:
            out.zero_()
            failures[task.start + offset] = str(error)
    return failures


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from using several cores for one small image inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ThreadWorkers:
    """Threads of this process; each batch has its own memory, pinned for CUDA."""

    def __init__(self, source: Source, view: AnyView, *, num_workers: int) -> None:
        self._source, self._view = source, view
        # One image is too small for several cores: torch must not start threads inside ours. The setting belongs to
        # the calling thread, but threads started later inherit it, so it is restored here.
        before = torch.get_num_threads()
        started = threading.Barrier(num_workers + 1)

        def begin() -> None:
            torch.set_num_threads(1)
            started.wait()

        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="vitrine-data", initializer=begin)
        try:
            for _ in range(num_workers):
                self._pool.submit(bool)
            started.wait()
        except BaseException:
            # The system refuses more threads: those that wait for the rest would wait forever.
            started.abort()
            raise
        finally:
            torch.set_num_threads(before)

    def start(self, shape: tuple[int, ...], tasks: list[Task], *, pin_memory: bool) -> "_ThreadTicket":
        """Start filling a batch of `shape`."""
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory)
        futures = [
            self._pool.submit(fill, images, task, source=self._source, view=self._view) for task in tasks
        ]
        return _ThreadTicket(images, futures)

    def close(self) -> None:
        """Stop the threads after their current tasks."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _ThreadTicket:
    images: torch.Tensor
    futures: list[Future[Failures]]

    def result(self) -> tuple[torch.Tensor, Failures]:
        failures: Failures = {}
        for future in self.futures:
            failures |= future.result()
        return self.images, failures

    def abandon(self) -> None:
        for future in self.futures:
            future.cancel()


class ProcessWorkers:
    """Processes that write into a ring of shared batches; results are copies."""

    def __init__(self, source: Source, view: AnyView, *, num_workers: int, num_slots: int, rows: int) -> None:
        # Not fork: threads and CUDA do not survive it.
        context = multiprocessing.get_context("spawn")
        shape = (num_slots, rows, view.channels, *view.size)
        self._slots = torch.empty(shape, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._free = list(range(num_slots))
        # Not a SimpleQueue: it blocks a writer when the pipe is full, forever if no reader is left.
        self._tasks: Any = context.Queue()
        self._done: Any = context.Queue()
        self._tickets: dict[int, _ProcessTicket] = {}
        self._next = 0
        self._processes = [
            context.Process(
                target=_serve,
                args=(source, view, self._slots, self._tasks, self._done),
                daemon=True,
                name=f"vitrine-data-{number}",
            )
            for number in range(num_workers)
        ]
        for process in self._processes:
            process.start()
        self._closer = weakref.finalize(self, _stop, self._processes, self._tasks)

    def start(self, shape: tuple[int, ...], tasks: list[Task], *, pin_memory: bool) -> "_ProcessTicket":
        """Start filling a batch of `shape` in a free slot."""
        while not self._free:
            self._receive()
        ticket = _ProcessTicket(
            self,
            number=self._next,
            slot=self._free.pop(),
            rows=shape[0],
            left=len(tasks),
            pin_memory=pin_memory,
        )
        self._tickets[self._next] = ticket
        self._next += 1
        for task in tasks:
            self._tasks.put((ticket.number, ticket.slot, task))
        return ticket

    def close(self) -> None:
        """Stop the processes."""
        self._closer()

    def _receive(self) -> None:
        """Receive one answer, or detect that a process has died."""
        while True:
            try:
                number, failures = self._done.get(timeout=_PATIENCE_SECONDS)
                break
            except queue.Empty:
                dead = [process for process in self._processes if not process.is_alive()]
                if dead:
                    raise DataError(
                        f"a data worker process ended with code {dead[0].exitcode}, most likely out of "
                        "memory; use fewer workers or worker_kind='threads'"
                    ) from None
        ticket = self._tickets[number]
        ticket.left -= 1
        ticket.failures.update(failures)
        if ticket.left == 0:
            del self._tickets[number]
            if ticket.is_abandoned:
                self._free.append(ticket.slot)


class _ProcessTicket:
    def __init__(
        self, workers: ProcessWorkers, *, number: int, slot: int, rows: int, left: int, pin_memory: bool
    ) -> None:
        self.workers, self.number, self.slot = workers, number, slot
        self.rows, self.left, self.pin_memory = rows, left, pin_memory
        self.failures: Failures = {}
        self.is_abandoned = False

    def result(self) -> tuple[torch.Tensor, Failures]:
        while self.left:
            self.workers._receive()
        filled = self.workers._slots[self.slot, : self.rows]
        images = torch.empty(filled.shape, dtype=torch.uint8, pin_memory=self.pin_memory)
        # The other cores belong to the workers; a parallel copy would wait for them.
        with one_thread():
            images.copy_(filled)
        self.workers._free.append(self.slot)
        return images, self.failures

    def abandon(self) -> None:
        self.is_abandoned = True
        if self.left == 0:
            self.workers._free.append(self.slot)


def start_workers(
    source: Source, view: AnyView, kind: WorkerKind, *, num_workers: int, num_slots: int, rows: int
) -> ThreadWorkers | ProcessWorkers | None:
    """Start workers of one kind for batches of so many rows; None without any, as the caller then reads itself."""
    if kind not in ("threads", "processes"):
        raise ConfigError(f"worker_kind must be threads or processes, got {kind!r}")
    if num_workers < 0:
        raise ConfigError(f"num_workers must be 0 or more, got {num_workers}")
    if not num_workers:
        return None
    if kind == "threads":
        return ThreadWorkers(source, view, num_workers=num_workers)
    return ProcessWorkers(source, view, num_workers=num_workers, num_slots=num_slots, rows=rows)


Ticket: TypeAlias = _ThreadTicket | _ProcessTicket


def _serve(source: Source, view: AnyView, slots: torch.Tensor, tasks: Any, done: Any) -> None:
    """Fill rows in a separate process until it is stopped."""
    torch.set_num_threads(1)
    try:
        while (message := tasks.get()) is not None:
            number, slot, task = message
            done.put((number, fill(slots[slot], task, source=source, view=view)))
    except KeyboardInterrupt:
        pass  # the parent receives it too, and reports it


def _stop(processes: list[Any], tasks: Any) -> None:
    for _ in processes:
        tasks.put(None)
    for process in processes:
        process.join(timeout=2)
        if process.is_alive():
            process.terminate()
            process.join()
    tasks.cancel_join_thread()  # do not wait for tasks that nobody reads
    tasks.close()
