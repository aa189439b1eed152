"""The results of VTAB by task, by group and overall; a mean with missing tasks is never a VTAB score."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from vitrine.data.sources.vtab.tasks import TASKS, Group
from vitrine.evaluation.metrics import Interval

# Table 9 of the paper: accuracy in % by task, in the order of TASKS. Compared with the printed table cell by cell; a
# test checks the means against Table 2.
PAPER_ROWS: dict[str, tuple[float, ...]] = {
    "ViT-H/14 (JFT)": (
        95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6, 91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2,
        51.2,
    ),
    "ViT-L/16 (JFT)": (
        95.4, 81.9, 74.3, 99.7, 96.7, 63.5, 87.4, 83.6, 96.5, 89.7, 77.1, 86.4, 63.1, 49.7, 74.5, 60.5, 82.2, 36.2,
        51.1,
    ),
    "ViT-L/16 (I21k)": (
        90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9, 82.5, 95.6, 85.2, 75.3, 70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5,
        41.7,
    ),
}  # fmt: skip
# Table 2: the means of the same models, and of BiT-L, whose tasks the paper does not list.
PAPER_MEANS = {
    "ViT-H/14 (JFT)": 77.63,
    "ViT-L/16 (JFT)": 76.28,
    "ViT-L/16 (I21k)": 72.72,
    "BiT-L R152x4 (JFT)": 76.29,
}


def paper_group_mean(name: str, group: Group) -> float:
    """Return the mean in % of one group for one of the paper's models."""
    return fmean(value for task, value in zip(TASKS, PAPER_ROWS[name], strict=True) if task.group == group)


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One task: accuracy on the whole test set, and the chosen attempt."""

    task: str
    group: Group
    accuracy: Interval
    num_test: int
    lr: float
    steps: int
    layout: str
    sweep: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VtabScores:
    """All tasks that ran, and the names of the missing ones."""

    model: str
    protocol: str
    scores: tuple[TaskScore, ...]
    missing: tuple[str, ...]

    @property
    def mean(self) -> float | None:
        """Mean of the 19 tasks; None if one is missing."""
        return fmean(score.accuracy.value for score in self.scores) if not self.missing else None

    @property
    def mean_of_present(self) -> float:
        """Mean of the tasks that ran; not a VTAB score if one is missing."""
        return fmean(score.accuracy.value for score in self.scores)

    def group_mean(self, group: Group) -> float | None:
        """Return the mean of a group; None if one of its tasks is missing."""
        values = [score.accuracy.value for score in self.scores if score.group == group]
        return fmean(values) if len(values) == sum(task.group == group for task in TASKS) else None

    @property
    def count(self) -> str:
        """How many tasks ran, to be shown with every mean."""
        return f"{len(self.scores)} of {len(TASKS)}"
