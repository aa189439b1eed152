"""Early ends of training: a signal, NaN or infinity, or memory that runs out."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from vitrine.errors import Advice, TrainingError, TryOption, TryVerb, VitrineError
from vitrine.runtime.run_address import shown_place
from vitrine.training.config import TrainingConfig

# Ctrl-C, kill, a closed terminal, Ctrl-\\, and the warning that SLURM sends before a job's time is over.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1")
    if hasattr(signal, name)  # Windows has the first two
)


class StoppedError(VitrineError):
    """A signal asked to stop; everything is saved, up to `step`."""

    exit_code = 130

    def __init__(self, problem: str, *, step: int | None = None, advice: Sequence[Advice] = ()) -> None:
        super().__init__(problem, advice=advice)
        self.step = step


class NotFiniteError(TrainingError):
    """The loss or a gradient of `step` is NaN or infinity; the last good weights are saved, beside the checkpoint."""

    def __init__(self, problem: str, *, step: int | None = None, advice: Sequence[Advice] = ()) -> None:
        super().__init__(problem, advice=advice)
        self.step = step


class NoMemoryError(TrainingError):
    """A step does not fit in memory, even with the smallest micro-batch."""


class Stoppable(Protocol):
    """Anything that can be asked to stop."""

    wants_to_stop: bool


@contextmanager
def saving_on_signals(run: Stoppable) -> Iterator[None]:
    """Let the first signal ask the loop to save and stop; a second Ctrl-C stops at once."""

    def ask(number: int, frame: Any) -> None:
        if run.wants_to_stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        run.wants_to_stop = True

    # Ignored signals stay ignored: `nohup` lets a run survive its terminal.
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


def not_finite(
    *,
    step: int,
    batch: str,
    config: TrainingConfig,
    is_bf16: bool,
    weights: Path | None,
    run: Path,
    saved_step: int,
) -> NotFiniteError:
    """Return the error for NaN or infinity: its step, its files, the last good weights and possible fixes."""
    problem = (
        f"the loss or a gradient of step {step + 1} is NaN or infinity; the weights before it are in {weights}; "
        f"the batch was {batch}; try a lower learning rate (now {config.lr:g}) or a longer warm-up"
    )
    advice: list[Advice] = [TryOption("precision", "to compute exactly", "fp32")] if is_bf16 else []
    if saved_step < step:
        lower = {"set": f"training.lr={config.lr / 10:g}"}
        advice.append(TryVerb("resume", (shown_place(run),), f"to continue from step {saved_step}", lower))
    else:
        problem += "; resuming cannot help, as the last checkpoint is of the same step: start a new run"
    return NotFiniteError(problem, step=step + 1, advice=advice)
