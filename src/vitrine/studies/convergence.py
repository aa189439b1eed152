"""Whether the runs of a study are long enough: its reference arm is trained twice as long as well."""

import statistics
from dataclasses import dataclass
from typing import Literal

from vitrine.spelling import counted
from vitrine.studies.arms import LONGER, SUFFIX
from vitrine.studies.results import Results

Word = Literal["converged", "not converged", "overfits", "not checked"]
# A gain above it says that the runs are too short, a loss above it that longer ones overfit.
MOST_CHANGE = 0.005


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """The change in accuracy of the reference arm with twice the steps."""

    arm: str
    change: float
    seeds: int

    @property
    def word(self) -> Word:
        """What the change says about the length of the runs."""
        if self.change > MOST_CHANGE:
            return "not converged"
        return "overfits" if self.change < -MOST_CHANGE else "converged"

    def __str__(self) -> str:
        return (
            f"{self.arm} with {LONGER} times the steps ({counted(self.seeds, 'seed')}): "
            f"{100 * self.change:+.2f} points ({self.word})"
        )


def convergence_of(results: Results) -> Convergence | None:
    """Compare the longer runs with those of the same arm and the same seeds; None if there are none."""
    shorter = {(result.group, result.seed): result for result in results.measured}
    changes, arm = [], ""
    for result in results.all:
        own = shorter.get((result.group.removesuffix(SUFFIX), result.seed))
        if result.role == "check" and own is not None:
            arm = own.group
            changes.append(result.measures["accuracy"] - own.measures["accuracy"])
    return Convergence(arm=arm, change=statistics.fmean(changes), seeds=len(changes)) if changes else None


def word_on(results: Results) -> Word:
    """Return the one word on the length of a study's runs."""
    convergence = convergence_of(results)
    return "not checked" if convergence is None else convergence.word
