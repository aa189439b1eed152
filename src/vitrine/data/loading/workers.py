"""Pools that fill batches with decoded images: threads here, processes in `worker_processes`."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from vitrine.data.loading.filling import Notes, Task, fill
from vitrine.data.loading.worker_processes import ProcessTicket, ProcessWorkers
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError

WorkerKind = Literal["threads", "processes"]


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
    futures: list[Future[Notes]]

    def result(self) -> tuple[torch.Tensor, Notes]:
        notes = Notes()
        for future in self.futures:
            notes.add(future.result())
        return self.images, notes

    def abandon(self) -> None:
        for future in self.futures:
            future.cancel()


def start_workers(
    source: Source, view: AnyView, kind: WorkerKind, *, num_workers: int, num_slots: int, rows: int
) -> ThreadWorkers | ProcessWorkers | None:
    """Start workers of one kind for batches of `rows` images; None without any: the caller then reads itself."""
    if kind not in ("threads", "processes"):
        raise ConfigError(f"worker_kind must be threads or processes, got {kind!r}")
    if num_workers < 0:
        raise ConfigError(f"num_workers must be 0 or more, got {num_workers}")
    if not num_workers:
        return None
    if kind == "threads":
        return ThreadWorkers(source, view, num_workers=num_workers)
    return ProcessWorkers(source, view, num_workers=num_workers, num_slots=num_slots, rows=rows)


Ticket: TypeAlias = _ThreadTicket | ProcessTicket
