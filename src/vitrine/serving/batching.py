"""Dynamic batching: single pictures in, batches to the model, single answers out.

A worker that is free takes whatever waits, at most what it can compute within half of the latency aimed at. So a
picture that finds the server idle is computed at once and alone, and the batches grow by themselves as more come.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from vitrine.serving.refusals import UNAVAILABLE, RefusedError

# Weight of the newest batch in the running mean of seconds a picture.
NEWEST = 0.2


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One kind of work; only items of the same task go together."""

    name: str
    run: Callable[[Sequence[Any]], Sequence[Any]]
    """Maps items to as many results."""
    most: int
    """Items in one batch, whatever the time allows."""


@dataclass(eq=False)
class Job:
    """One item on its way."""

    task: Task
    item: Any
    future: "Future[Any]"


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

    def submit(self, task: Task, item: Any, *, future: "Future[Any] | None" = None) -> "Future[Any]":
        """Put one item in the queue; the future, a new one or one that is being waited for, gives its result."""
        job = Job(task, item, future or Future())
        with self._changed:
            if self._is_stopping:
                raise RefusedError(
                    UNAVAILABLE, "the server is stopping and takes no more requests", retry_after=5
                )
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    @property
    def num_waiting(self) -> int:
        """Jobs that no worker has taken yet."""
        return len(self._jobs)

    def expected_wait(self) -> float:
        """Seconds that a job put in now would wait, by the speed seen so far."""
        jobs = list(self._jobs)
        return sum(self.seconds_each.get(job.task, 0.0) for job in jobs) / len(self.workers)

    def batch_size(self, task: Task) -> int:
        """Items that are computed within half of the target; the other half is for those before them."""
        seconds = self.seconds_each.get(task)
        if not seconds:
            return 1
        return max(1, min(task.most, int(self.target_seconds / 2 / seconds)))

    def stop(self) -> None:
        """Finish what is in the queue, take no more, end the workers."""
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
        """Take the first job and the next ones of the same task; those that nobody waits for are dropped."""
        task = self._jobs[0].task
        most = self.batch_size(task)
        taken: list[Job] = []
        kept: deque[Job] = deque()
        while self._jobs and len(taken) < most:
            job = self._jobs.popleft()
            if job.task is not task:
                kept.append(job)
            elif job.future.set_running_or_notify_cancel():
                taken.append(job)
        self._jobs.extendleft(reversed(kept))
        return taken

    def _compute(self, batch: list[Job]) -> None:
        task, begin = batch[0].task, time.perf_counter()
        try:
            results = task.run([job.item for job in batch])
        except Exception as error:  # one bad batch must not end the worker; its clients hear of it
            for job in batch:
                job.future.set_exception(error)
            return
        seconds = time.perf_counter() - begin
        each = seconds / len(batch)
        before = self.seconds_each.get(task, each)
        self.seconds_each[task] = (1 - NEWEST) * before + NEWEST * each
        self.on_batch(task, len(batch), seconds)
        for job, result in zip(batch, results, strict=True):
            job.future.set_result(result)
