"""Whether an eight-bit copy is worth it: faster than fp32 in some runtime, and at most one point less accurate."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitrine.errors import ConfigError, TryOption
from vitrine.exporting.comparison import Timing
from vitrine.exporting.exported import Exported, Subject
from vitrine.exporting.proof import Accuracy

JUDGED = ("int8", "int8-static")
MOST_LOSS = 0.01


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An eight-bit copy in one runtime, beside fp32 in the same runtime."""

    engine: str
    precision: str
    ratio: float | None
    """Its time divided by that of fp32, at the batch size with the largest gain; None if not measured."""
    cost: float | None
    """Top-1 of the model minus that of the copy; None if not measured."""

    @property
    def is_worth_it(self) -> bool:
        """Whether it is faster and loses at most a point; missing measurements do not count against it."""
        return (self.ratio is None or self.ratio < 1) and (self.cost is None or self.cost <= MOST_LOSS)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A copy that is worth it in no runtime, with the figures."""

    file: str
    bytes: int
    trials: tuple[Trial, ...]


def refuse_copies(
    exported: Exported, timings: Sequence[Timing], accuracy: Sequence[Accuracy]
) -> tuple[Refusal, ...]:
    """Return the eight-bit copies that are worth it in no runtime; a copy without any figure is kept."""
    trials = [
        (subject, trial_of(subject, timings=timings, accuracy=accuracy))
        for subject in exported.subjects
        if subject.precision in JUDGED and subject.file is not None
    ]
    refusals = []
    for path in exported.files:
        own = tuple(trial for subject, trial in trials if subject.file == path)
        if own and not any(trial.is_worth_it for trial in own):
            refusals.append(Refusal(file=path.name, bytes=path.stat().st_size, trials=own))
    return tuple(refusals)


def without_refused(exported: Exported, refusals: Sequence[Refusal]) -> Exported:
    """Delete the refused copies; raise an error if nothing would remain."""
    names = {refusal.file for refusal in refusals}
    kept = tuple(path for path in exported.files if path.name not in names)
    for path in exported.files:
        if path not in kept:
            path.unlink()
    if not kept:
        raise ConfigError(
            " ".join(refusal_lines(refusals)),
            option="int8",
            advice=[TryOption("allow_loss", "to write it nevertheless", True)],
        )
    return dataclasses.replace(exported, files=kept)


def trial_of(subject: Subject, *, timings: Sequence[Timing], accuracy: Sequence[Accuracy]) -> Trial:
    """Collect the figures of one copy in one runtime."""
    name = subject.name, subject.precision
    ratios = [each.ratio for each in timings if (each.engine, each.precision) == name and each.ratio]
    costs = [each.cost for each in accuracy if (each.against, each.precision) == name]
    return Trial(
        engine=subject.name,
        precision=subject.precision,
        ratio=min(ratios, default=None),
        cost=costs[0] if costs else None,
    )


def refusal_lines(refusals: Sequence[Refusal]) -> Iterator[str]:
    """Write each refusal on one line."""
    for refusal in refusals:
        figures = "; ".join(f"{trial.engine}: {', '.join(_figures(trial))}" for trial in refusal.trials)
        yield f"{refusal.file} is not worth it and was removed: {figures}"


def _figures(trial: Trial) -> Iterator[str]:
    if trial.ratio is not None:
        yield f"{trial.ratio:.2f} x the time of fp32 at best"
    if trial.cost is not None:
        yield f"{100 * trial.cost:.1f} points of top-1 lost"
