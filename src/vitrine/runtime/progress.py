"""Progress, notices and plans, sent to the current listener.

Code below the command line never prints. They wrap long loops in `track`, send sentences with `notice` and records (a
plan, say) with `present`. The command line listens with a live line and renders records with its views; without a
listener, nothing is sent.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

from vitrine.errors import Advice

Item = TypeVar("Item")


class Listener(Protocol):
    """Receives the start of the work, each step, its end, and notices in between."""

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        """Receive the start of work named `what`, of `total` steps if known, `done` of which were done before."""

    def advance(self, steps: int, note: str = "") -> None:
        """Receive that `steps` more steps are done, with a note on the current state."""

    def lengthen(self, steps: int) -> None:
        """Receive that the work is `steps` steps longer than announced; shorter if negative."""

    def finish(self) -> None:
        """Receive the end of the work, successful or not."""

    def notice(self, text: str, advice: Sequence[Advice] = ()) -> None:
        """Receive one sentence that the user should read, and parameters that would help."""

    def present(self, record: object) -> None:
        """Receive a record to show before the work begins, such as a plan."""


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send all progress made inside the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def quiet() -> Iterator[None]:
    """Send no progress from inside the block."""
    token = _listener.set(None)
    try:
        yield
    finally:
        _listener.reset(token)


def track(items: Iterable[Item], what: str, *, total: int | None = None, weight: int = 1) -> Iterator[Item]:
    """Yield `items` and report each to the listener; one item counts as `weight` steps."""
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    if total is None and isinstance(items, Sized):
        total = len(items) * weight
    listener.start(what, total)
    try:
        for item in items:
            yield item
            listener.advance(weight)
    finally:
        listener.finish()


@contextmanager
def announced(what: str, *, total: int, done: int = 0) -> Iterator[Callable[[int, str], None]]:
    """Announce work of `total` steps; the block gets a function to call with the steps done and a note."""
    listener = _listener.get()
    if listener is None:
        yield lambda steps, note: None
        return
    listener.start(what, total, done)
    try:
        yield listener.advance
    finally:
        listener.finish()


def lengthen(steps: int) -> None:
    """Send the listener that the announced work has become `steps` steps longer; shorter if negative."""
    listener = _listener.get()
    if listener is not None and steps:
        listener.lengthen(steps)


def notice(text: str, *, advice: Sequence[Advice] = ()) -> None:
    """Send the listener one sentence that the user should read, and parameters that would help."""
    listener = _listener.get()
    if listener is not None:
        listener.notice(text, advice)


def present(record: object) -> None:
    """Send the listener a record to show, such as a plan; the command line has a view for each kind."""
    listener = _listener.get()
    if listener is not None:
        listener.present(record)


def current_listener() -> Listener | None:
    """Return the listener, for work whose steps are reported by callbacks of a library."""
    return _listener.get()
