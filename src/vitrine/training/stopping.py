"""Ends that come early: asked for by a signal, or because nothing can be learned any more."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from vitrine.errors import TrainingError, VitrineError


class StoppedError(VitrineError):
    """Ctrl-C or SIGTERM: everything is saved."""

    exit_code = 130


class NotFiniteError(TrainingError):
    """The loss or a gradient is no longer a number; the last good weights are saved, beside the last checkpoint."""


class Stoppable(Protocol):
    """Whatever can be asked to stop."""

    wants_to_stop: bool


@contextmanager
def saving_on_signals(run: Stoppable) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM ask the loop to save and stop; a second Ctrl-C stops at once."""

    def ask(number: int, frame: Any) -> None:
        if run.wants_to_stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        run.wants_to_stop = True

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever owns it handles signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
