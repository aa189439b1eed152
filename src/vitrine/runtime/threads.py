"""Work in threads whose memory is bounded, whose errors arrive, and which end with whoever asked for it. No torch."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from vitrine.runtime.cores import available_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
# Items that are on their way at once: bounds the memory whatever their number.
_AT_ONCE_A_WORKER = 16


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, num_workers: int
) -> Generator[Result, None, None]:
    """Map `function` over `items` in threads (0: one a core), results in order, only a few on their way at once."""
    num_workers = num_workers or available_cores()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= num_workers * _AT_ONCE_A_WORKER:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
