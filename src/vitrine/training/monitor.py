"""The events of a run, in one sentence each: spikes of the training loss, gaps between training and validation.

The monitor reads logged means only and costs nothing on the device. Its numbers are part of a run's state, so that a
resumed run reports what an uninterrupted one would.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from vitrine.errors import CheckpointError

# A spike is this many deviations above the usual loss, and at least this fraction of it. The usual loss is the median
# of the last records, once there are enough of them.
WINDOW, FEWEST, DEVIATIONS, LEAST_RISE = 20, 8, 6.0, 0.2
# Standard deviations in the median absolute deviation of normal numbers.
DEVIATION = 1.4826
# Evaluations in a row that are this much worse than the best one, while the training loss falls.
WORSE, MARGIN = 3, 1.02
# Gaps between training and validation accuracy, in points, that are reported: the first, and each further one.
FIRST_GAP, NEXT_GAP = 0.2, 0.1


@dataclass
class Monitor:
    """Statistics of the records so far; each method returns a sentence if there is an event to report."""

    losses: list[float] = field(default_factory=list)
    """The last logged training losses, without those of a spike."""
    norms: list[float] = field(default_factory=list)
    spike_step: int | None = None
    """The record in which the current spike began."""
    spike_peak: float = 0.0
    spike_records: int = 0
    training_loss: float | None = None
    training_accuracy: float | None = None
    least: float | None = None
    """Validation loss of the best evaluation by loss."""
    least_step: int = 0
    training_at_least: float | None = None
    num_worse: int = 0
    next_gap: float = FIRST_GAP

    def after_log(self, record: Mapping[str, float]) -> str | None:
        """Read a record of training; report a spike of its loss, and its end."""
        loss, norm, step = record["loss"], record.get("gradient_norm", math.nan), int(record["step"])
        self.training_loss, self.training_accuracy = loss, record.get("accuracy")
        is_high = len(self.losses) >= FEWEST and loss > self.limit
        if self.spike_step is None and is_high:
            self.spike_step, self.spike_peak, self.spike_records = step, loss, 1
            usual_norm = statistics.median(self.norms)
            return (
                f"Loss spike at step {step:,}: {loss:.3g} after {self.usual:.3g}, "
                f"gradient norm {norm:.3g} after {usual_norm:.3g}"
            )
        if self.spike_step is not None and is_high:
            self.spike_peak, self.spike_records = max(self.spike_peak, loss), self.spike_records + 1
            return self._stayed(loss) if self.spike_records > WINDOW else None
        sentence = None if self.spike_step is None else self._is_over(loss, step)
        self.losses, self.norms = [*self.losses, loss][-WINDOW:], [*self.norms, norm][-WINDOW:]
        return sentence

    def after_evaluation(self, step: int, scores: Mapping[str, float]) -> str | None:
        """Read an evaluation; report overfitting, and a large gap between training and validation accuracy."""
        sentence = self._gap(scores.get("accuracy"))
        loss, training = scores.get("loss"), self.training_loss
        if loss is None or training is None:
            return sentence
        if self.least is None or loss < self.least:
            self.least, self.least_step, self.training_at_least, self.num_worse = loss, step, training, 0
            return sentence
        before = self.training_at_least
        is_worse = loss > MARGIN * self.least and before is not None and training < before
        self.num_worse = self.num_worse + 1 if is_worse else 0
        if self.num_worse != WORSE:
            return sentence
        return (
            f"Overfitting since step {self.least_step:,}: validation loss rose from {self.least:.3g} to {loss:.3g}, "
            f"training loss fell from {before:.3g} to {training:.3g}"
        )

    @property
    def usual(self) -> float:
        """The usual loss of the last records."""
        return statistics.median(self.losses)

    @property
    def limit(self) -> float:
        """The loss above which a record is a spike."""
        deviation = DEVIATION * statistics.median(abs(loss - self.usual) for loss in self.losses)
        return self.usual + max(DEVIATIONS * deviation, LEAST_RISE * abs(self.usual))

    def _is_over(self, loss: float, step: int) -> str:
        assert self.spike_step is not None
        began, self.spike_step = self.spike_step, None
        return f"Loss back at {loss:.3g} at step {step:,}, after the spike to {self.spike_peak:.3g} at step {began:,}"

    def _stayed(self, loss: float) -> str:
        began, usual, self.spike_step = self.spike_step, self.usual, None
        self.losses, self.norms = [], []
        return (
            f"The loss has not recovered from the spike at step {began:,}: {loss:.3g} now, {usual:.3g} before; "
            "resume an earlier checkpoint with a lower learning rate or clip_norm"
        )

    def _gap(self, accuracy: float | None) -> str | None:
        training = self.training_accuracy
        if accuracy is None or training is None or training - accuracy < self.next_gap:
            return None
        if len(self.losses) < FEWEST:  # the first records are of few images
            return None
        gap = training - accuracy
        self.next_gap = gap + NEXT_GAP
        return (
            f"Training accuracy {100 * training:.1f} %, validation accuracy {100 * accuracy:.1f} %: "
            f"{100 * gap:.0f} points apart"
        )

    def numbers(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Self:
        """Restore a monitor from its plain values; an empty mapping is a new one."""
        values = [*numbers.values()]
        plain = [one for value in values for one in (value if isinstance(value, list) else [value])]
        names = {one.name for one in dataclasses.fields(cls)}
        if not numbers.keys() <= names or not all(isinstance(one, int | float | None) for one in plain):
            raise CheckpointError(f"its numbers of the monitor are {numbers!r:.60}")
        return cls(**numbers)
