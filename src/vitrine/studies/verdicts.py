"""From results to a verdict, by stated rules: comparisons of means with the spread over seeds.

Every comparison has a standard error, computed from the spread of one run (pooled over the whole study) and the
number of seeds on either side. A difference counts if it is more than twice its standard error.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

State = Literal["holds", "open", "opposite"]
Word = Literal["reproduced", "open", "contradicted", "not measured"]
SURE = 2.0
# With fewer seeds, a single outlier determines the spread that every comparison uses.
LEAST_SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence of the claim, compared with the measurements."""

    says: str
    difference: float
    error: float
    state: State
    is_points: bool = True
    """Whether the difference is a fraction, shown as percentage points."""

    def __str__(self) -> str:
        factor, unit = (100, " points") if self.is_points else (1, "")
        return (
            f"{self.says}: {factor * self.difference:+.2f} ± {factor * self.error:.2f}{unit} ({self.state})"
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on the claim, for the scale and the data that were measured."""

    word: Word
    findings: tuple[Finding, ...]
    reservation: str = ""
    """Reason why the verdict is open regardless of the findings; empty if there is none."""


def verdict_of(findings: Sequence[Finding], *, num_seeds: int = LEAST_SEEDS) -> Verdict:
    """Contradicted by one opposite finding; reproduced if all hold; otherwise, or with too few seeds, open."""
    states = [finding.state for finding in findings]
    word: Word = "open"
    reservation = ""
    if not findings:
        word = "not measured"
    elif num_seeds < LEAST_SEEDS:
        reservation = f"{num_seeds} of the {LEAST_SEEDS} seeds that a verdict needs"
    elif "opposite" in states:
        word = "contradicted"
    elif all(state == "holds" for state in states):
        word = "reproduced"
    return Verdict(word=word, findings=tuple(findings), reservation=reservation)


def ahead(
    says: str, better: Sequence[float], worse: Sequence[float], *, spread: float, by: float = 0.0
) -> list[Finding]:
    """Compare two means: holds if `better` is ahead by more than `by` and the noise, opposite if as far behind."""
    if not better or not worse:
        return []
    difference = statistics.fmean(better) - statistics.fmean(worse)
    return [above(says, difference, error_of(spread, better, worse), by=by)]


def level(
    says: str, one: Sequence[float], other: Sequence[float], *, spread: float, within: float, most: float
) -> list[Finding]:
    """Compare two means that should be equal: holds within `within` or twice the error, opposite above `most`.

    A difference inside twice its error is never opposite, and noise that could hide a difference of `most` leaves the
    comparison open.
    """
    if not one or not other:
        return []
    difference = statistics.fmean(one) - statistics.fmean(other)
    error = error_of(spread, one, other)
    noise = SURE * error
    state: State = "open"
    if abs(difference) <= max(within, noise) and noise <= most:
        state = "holds"
    elif abs(difference) > max(most, noise):
        state = "opposite"
    return [Finding(says=says, difference=difference, error=error, state=state)]


def above(says: str, difference: float, error: float, *, by: float = 0.0, is_points: bool = True) -> Finding:
    """Compare a difference that should be above `by` with twice its standard error."""
    state: State = "open"
    if difference > max(SURE * error, by):
        state = "holds"
    elif difference < -max(SURE * error, by):
        state = "opposite"
    return Finding(says=says, difference=difference, error=error, state=state, is_points=is_points)


EDGE = "a best learning rate is at the edge of its grid, or the only one"


def left_open(finding: Finding, reason: str) -> Finding:
    """Leave a comparison open because its runs do not allow it, and say why."""
    return replace(finding, says=f"{finding.says} ({reason})", state="open")


def error_of(spread: float, *sides: Sequence[float]) -> float:
    """Return the standard error of a difference of means."""
    return float(spread * sum(1 / len(side) for side in sides) ** 0.5)
