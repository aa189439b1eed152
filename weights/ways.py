"""Ways to distil: what is compared within equal GPU minutes. Every field is an option of `distil.py`."""

import dataclasses

# Grid until which fraction of the time: two thirds of the time at 144 pixels, the rest at 224.
STAGES = "9:0.45,14:1"


def stages_of(text: str) -> list[tuple[int, float]]:
    """Read `9:0.45,14:1` as grids and the fraction of the time until which each is trained."""
    pairs = [pair.split(":") for pair in text.split(",")]
    stages = [(int(grid), float(until)) for grid, until in pairs]
    assert [until for _, until in stages] == sorted(until for _, until in stages)
    return stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """One way to distil. Numbers before a loss are its weight; 0 turns it off."""

    token: float = 1.0
    """The class token matches the teacher's in direction."""
    patches: float = 1.0
    """Every patch token matches the teacher's."""
    relations: float = 0.5
    """Distances between class tokens in a batch match the teacher's."""
    head: float = 0.5
    """The head matches a linear head on the teacher's class token."""
    second: float = 0.5
    """The head matches the second teacher's most likely classes."""
    label: float = 0.25
    """The head learns the label, where there is one."""
    projector: int = 1
    """Layers between the student's tokens and the teacher's; they are thrown away."""
    local: int = 0
    """Small crops per image (multi-crop): their class tokens match the teacher's token of the large crop."""
    masked: float = 0.0
    """Fraction of the student's patches that are replaced by one learned vector; all must match nevertheless."""
    teacher_scale: float = 1.0
    """The teacher's grid over the student's: above 1, the teacher sees more pixels and its patches are averaged."""
    stages: str = STAGES
    """Grids of the student and the fraction of the time until which each is trained."""
    average: float = 0.9995
    """Decay of the averaged weights; 0 for none."""
    drop: float = 0.0
    """Stochastic depth of the deepest layer."""

    def __post_init__(self) -> None:
        assert self.projector in (1, 2, 3) and 0 <= self.masked < 1 and self.teacher_scale > 0
        assert stages_of(self.stages)[-1][1] == 1


WAYS: dict[str, Way] = {
    "plain": Way(),
    "token": Way(patches=0.0),
    "no-relations": Way(relations=0.0),
    "projector": Way(projector=3),
    "multi-crop": Way(local=2),
    "masked": Way(masked=0.3),
    "sharp-teacher": Way(teacher_scale=1.5),
    "low-then-high": Way(stages="7:0.75,14:1"),
    "no-average": Way(average=0.0),
}
"""One change to `plain` each."""
