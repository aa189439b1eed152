"""Dynamic batching: single pictures in, batches to the model, single results out.

A free worker takes all queued pictures, at most as many as it can compute within half of the target latency. So a
picture that finds the server idle is computed at once and alone, and batches grow with the load.
"""

import ctypes
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from vitrine.serving.admission import UNAVAILABLE, RefusedError

# Weight of the newest batch in the running mean of seconds per picture.
NEWEST = 0.2
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
# Activations of a batch take a few MiB each, and glibc keeps them; it returns a large decoded picture to the system.
MMAP_BYTES = 2**26
TRIM_BYTES = 2**28


class Trace(Protocol):
    """One request that is being traced: each stage is recorded by the thread that does the work."""

    def record(self, name: str, begin: int, end: int, attributes: Mapping[str, str | int]) -> None:
        """Record a stage, from `begin` to `end` in nanoseconds since 1970."""


current_trace: ContextVar[Trace | None] = ContextVar("current_trace", default=None)
"""The request that is being answered; None where requests are not traced."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One kind of work; only items of the same task share a batch."""

    name: str
    run: Callable[[Sequence[Any]], Sequence[Any]]
    """Maps items to as many results."""
    max_batch: int
    """Maximum items per batch, even if the time allows more."""


@dataclass(eq=False)
class Job:
    """One queued item."""

    task: Task
    item: Any
    future: Future[Any]
    trace: Trace | None
    submitted: int
    """Nanoseconds since 1970."""


class Batcher:
    """Worker threads that take jobs from one queue, in order, batch by batch."""

    def __init__(
        self,
        *,
        workers: int,
        target_seconds: float,
        on_batch: Callable[[Task, int, float], None] = lambda task, size, seconds: None,
    ) -> None:
        self.target_seconds = target_seconds
        self.seconds_each: dict[Task, float] = {}
        self.on_batch = on_batch
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self.workers = [
            threading.Thread(target=self._work, name=f"inference {number}", daemon=True)
            for number in range(workers)
        ]
        for worker in self.workers:
            worker.start()

    def submit(
        self, task: Task, item: Any, *, future: Future[Any] | None = None, trace: Trace | None = None
    ) -> Future[Any]:
        """Queue one item; its result arrives in `future`, or in a new one."""
        job = Job(task, item, future or Future(), trace, time.time_ns())
        with self._changed:
            if self._is_stopping:
                raise RefusedError(UNAVAILABLE, "the server is stopping", retry_after=5)
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    @property
    def num_waiting(self) -> int:
        """Jobs that no worker has taken yet."""
        return len(self._jobs)

    def expected_wait(self) -> float:
        """Seconds that a job queued now would wait, at the measured speed."""
        jobs = list(self._jobs)
        return sum(self.seconds_each.get(job.task, 0.0) for job in jobs) / len(self.workers)

    def batch_size(self, task: Task) -> int:
        """Items that are computed within half of the target latency; the other half is for the batch before them."""
        seconds = self.seconds_each.get(task)
        if not seconds:
            return 1
        return max(1, min(task.max_batch, int(self.target_seconds / 2 / seconds)))

    def stop(self) -> None:
        """Finish the queue, accept no more jobs, end the workers."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for worker in self.workers:
            worker.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._is_stopping:
                    self._changed.wait()
                if not self._jobs:
                    return
                batch = self._take()
            if batch:
                self._compute(batch)

    def _take(self) -> list[Job]:
        """Take the first job and the next ones of the same task; drop the cancelled ones."""
        task = self._jobs[0].task
        max_batch = self.batch_size(task)
        taken: list[Job] = []
        kept: deque[Job] = deque()
        while self._jobs and len(taken) < max_batch:
            job = self._jobs.popleft()
            if job.task is not task:
                kept.append(job)
            elif job.future.set_running_or_notify_cancel():
                taken.append(job)
        self._jobs.extendleft(reversed(kept))
        return taken

    def _compute(self, batch: list[Job]) -> None:
        task, begin, begin_ns = batch[0].task, time.perf_counter(), time.time_ns()
        try:
            results = task.run([job.item for job in batch])
        except Exception as error:  # one bad batch must not end the worker; its clients get the error
            for job in batch:
                job.future.set_exception(error)
            return
        seconds = time.perf_counter() - begin
        each = seconds / len(batch)
        before = self.seconds_each.get(task, each)
        self.seconds_each[task] = (1 - NEWEST) * before + NEWEST * each
        self.on_batch(task, len(batch), seconds)
        for job, result in zip(batch, results, strict=True):
            if job.trace is not None:
                told: Mapping[str, str | int] = {"vitrine.task": task.name, "vitrine.batch_size": len(batch)}
                job.trace.record("queue", job.submitted, begin_ns, {})
                job.trace.record("model", begin_ns, time.time_ns(), told)
            job.future.set_result(result)


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks between batches, up to a bound; return whether it does.

    By default glibc returns each activation to the system and requests it again, page by page, in the next layer: up
    to 4 % of the time of a ViT-Ti/16 on a CPU (docs/experiments.md).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))
