"""Cores of this process, and work in threads: bounded memory, errors raised in the caller, clean end. No torch."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
# Items in progress per worker at a time, which bounds the memory for any number of items.
_ITEMS_PER_WORKER = 16


def available_cores() -> int:
    """Count the cores that this process may use: those in its affinity mask if the system reports it, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, num_workers: int
) -> Generator[Result, None, None]:
    """Map `function` over `items` in threads (0: one per core), results in order, only a few in progress at once."""
    num_workers = num_workers or available_cores()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= num_workers * _ITEMS_PER_WORKER:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
