"""Phases of a run: its first steps may see smaller images or fewer patches, its last may skip easy images.

    phases:
    - {until: 0.4, size: 24}        # images of 24 px; positions are resampled
    - {until: 0.8, patches: 0.75}   # three quarters of the patches, drawn anew for every image
    - {hardest: 0.5}                # backward only on the half of the batch with the largest losses

The phase of a step depends on its number alone, so a resumed run continues in it. All steps of a phase have the same
shapes: steps that are recorded as CUDA graphs are recorded anew when a phase begins.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.errors import ConfigError
from vitrine.models.cost import FORWARD_SHARE

# Kinds of passes that one compiled model may have: torch compiles at most eight versions of a function, and evaluates
# further ones without compiling.
MOST_KINDS = 8


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The steps of a run up to a fraction of all, and what they leave out."""

    until: float = 1.0
    """Fraction of the run at which the phase ends."""
    size: int | None = None
    """Side of the training images in pixels, which are resized on the device; None is the model's."""
    patches: float = 1.0
    """Fraction of the patches that are kept, drawn per image."""
    hardest: float = 1.0
    """Fraction of the batch, with the largest losses, that has a backward pass; all images have a forward pass."""

    def __post_init__(self) -> None:
        for name in ("until", "patches", "hardest"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(
                    f"{name} of a phase must be above 0 and at most 1, got {getattr(self, name)}"
                )
        if self.size is not None and self.size < 1:
            raise ConfigError(f"size of a phase must be at least 1, got {self.size}")

    @property
    def share_of_passes(self) -> float:
        """Cost per image relative to a forward and a backward pass on all images; selecting needs a forward pass."""
        return 1.0 if self.hardest == 1 else FORWARD_SHARE + self.hardest


WHOLE = Phase()


def require_phases(phases: Sequence[Phase]) -> None:
    """Refuse phases that are not in order or do not cover the run."""
    if not phases:
        return
    ends = [phase.until for phase in phases]
    if any(after <= before for before, after in itertools.pairwise(ends)):
        raise ConfigError(f"phases must be in order, each until a later fraction of the run, got {ends}")
    if ends[-1] != 1:
        raise ConfigError(f"the last phase must last until 1, the end of the run, got {ends[-1]}")
    num_kinds = sum(1 if phase.hardest == 1 else 2 for phase in phases)
    if num_kinds > MOST_KINDS:
        raise ConfigError(
            f"phases may have at most {MOST_KINDS} kinds of passes (a phase has two if hardest is below 1), got "
            f"{num_kinds}; use fewer phases"
        )


def phase_at(step: int, phases: Sequence[Phase], *, total_steps: int) -> Phase:
    """Return the phase of a step (from 0)."""
    return next((phase for phase in phases if step < phase.until * total_steps), WHOLE)


def steps_of(phases: Sequence[Phase], *, total_steps: int) -> list[tuple[Phase, int]]:
    """Return every phase with its number of steps."""
    ends = [math.ceil(phase.until * total_steps) for phase in phases]
    return [(phase, end - first) for phase, first, end in zip(phases, [0, *ends], ends, strict=False)]
