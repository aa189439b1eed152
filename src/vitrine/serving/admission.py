"""Who may come in: requests and bytes that the server holds at a time, both bounded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vitrine.serving.limits import Limits
from vitrine.serving.refusals import TOO_MANY, UNAVAILABLE, RefusedError


class Admission:
    """Counts what is inside; used from the event loop alone, so it needs no lock."""

    def __init__(self, limits: Limits, *, expected_wait: Callable[[], float]) -> None:
        self.limits = limits
        self.expected_wait = expected_wait
        self.requests = 0
        self.held_bytes = 0
        self.is_stopping = False

    def close(self) -> None:
        """Let nobody in any more."""
        self.is_stopping = True

    @contextmanager
    def entry(self) -> "Iterator[Entry]":
        """Let one request in for the block, or refuse it."""
        if self.is_stopping:
            raise RefusedError(
                UNAVAILABLE, "the server is stopping and takes no more requests", retry_after=5
            )
        if self.requests >= self.limits.waiting:
            raise RefusedError(
                TOO_MANY,
                f"{self.requests} requests are waiting, which is the most that are taken; try again shortly",
                retry_after=self.expected_wait(),
            )
        self.requests += 1
        entry = Entry(self)
        try:
            yield entry
        finally:
            self.requests -= 1
            entry.release()


class Entry:
    """One request that is inside, and the bytes it holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0

    def hold(self, count: int) -> None:
        """Take `count` more bytes, or refuse where all uploads together would hold too much."""
        admission = self._admission
        if admission.held_bytes + count > admission.limits.held_bytes:
            raise RefusedError(
                UNAVAILABLE,
                f"uploads hold {admission.held_bytes} bytes, near the limit of {admission.limits.held_bytes}; "
                "try again shortly",
                retry_after=admission.expected_wait(),
            )
        admission.held_bytes += count
        self._bytes += count

    def release(self) -> None:
        """Give the bytes back; the upload is gone."""
        self._admission.held_bytes -= self._bytes
        self._bytes = 0
