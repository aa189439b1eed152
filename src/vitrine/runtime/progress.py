"""Progress of long work, told to whoever listens.

Rooms below the command line never print. They wrap long loops in `track`, which tells the current listener;
the command line listens with a live line, a notebook may listen with anything, and without a listener it
costs nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Listener(Protocol):
    """Hears of the work's start, each step, its end, and of remarks made on the way."""

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        """Hear that work named `what` begins, of `total` steps if that is known, `done` of them done before."""

    def advance(self, steps: int, note: str = "") -> None:
        """Hear that `steps` more steps are done, and how it stands."""

    def finish(self) -> None:
        """Hear that the work has ended, well or not."""

    def remark(self, text: str) -> None:
        """Hear one sentence that the user should read."""


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
    """Tell nobody of what happens inside the block."""
    token = _listener.set(None)
    try:
        yield
    finally:
        _listener.reset(token)


def track(items: Iterable[Item], what: str, *, total: int | None = None, weight: int = 1) -> Iterator[Item]:
    """Pass `items` through and tell the listener of each; `weight` is how many steps one item stands for."""
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
    """Announce work of `total` steps; the block calls what it is given with steps done and a note on them."""
    listener = _listener.get()
    if listener is None:
        yield lambda steps, note: None
        return
    listener.start(what, total, done)
    try:
        yield listener.advance
    finally:
        listener.finish()


def remark(text: str) -> None:
    """Tell the listener one sentence that the user should read."""
    listener = _listener.get()
    if listener is not None:
        listener.remark(text)


def current_listener() -> Listener | None:
    """Return who listens, for work whose steps are told by someone else's callbacks."""
    return _listener.get()
