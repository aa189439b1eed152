"""Early ends of training: a signal, NaN or infinity, or memory that runs out."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from vitrine.errors import TrainingError, VitrineError

# Ctrl-C, kill, a closed terminal, Ctrl-\\, and the warning that SLURM sends before a job's time is over.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1")
    if hasattr(signal, name)  # Windows has the first two
)


class StoppedError(VitrineError):
    """A signal asked to stop; everything is saved."""

    exit_code = 130


class NotFiniteError(TrainingError):
    """The loss or a gradient is NaN or infinity; the last good weights are saved, beside the last checkpoint."""


class NoMemoryError(TrainingError):
    """A step needs more memory than there is, even with the smallest micro-batch."""


class Stoppable(Protocol):
    """Whatever can be asked to stop."""

    wants_to_stop: bool


@contextmanager
def saving_on_signals(run: Stoppable) -> Iterator[None]:
    """Let the first signal ask the loop to save and stop; a second Ctrl-C stops at once."""

    def ask(number: int, frame: Any) -> None:
        if run.wants_to_stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        run.wants_to_stop = True

    # A signal that is ignored stays so: `nohup` wants a run to survive its terminal.
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    try:
        before = {number: signal.signal(number, ask) for number in heard}
    except ValueError:  # not the main thread, which handles signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
