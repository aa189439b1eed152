"""The results of VTAB: by task, by group, in all; what is missing is named and never averaged away."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from vitrine.data.sources.vtab.tasks import GROUPS, TASKS, Group
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
    """Mean in % of one group for one of the paper's models."""
    return fmean(value for task, value in zip(TASKS, PAPER_ROWS[name], strict=True) if task.group == group)


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One task: accuracy on the whole test set, and how it was reached."""

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
    """All tasks that were run, and the names of those that were not."""

    model: str
    protocol: str
    scores: tuple[TaskScore, ...]
    missing: tuple[str, ...]

    @property
    def mean(self) -> float | None:
        """Mean of the 19 tasks; None unless all are there."""
        return fmean(score.accuracy.value for score in self.scores) if not self.missing else None

    @property
    def mean_of_present(self) -> float:
        """Mean of the tasks that are there: no VTAB score unless nothing is missing."""
        return fmean(score.accuracy.value for score in self.scores)

    def group_mean(self, group: Group) -> float | None:
        """Mean of a group; None unless all of its tasks are there."""
        values = [score.accuracy.value for score in self.scores if score.group == group]
        return fmean(values) if len(values) == sum(task.group == group for task in TASKS) else None

    @property
    def count(self) -> str:
        """How many tasks there are, as it must stand beside every mean."""
        return f"{len(self.scores)} of {len(TASKS)}"

    def __str__(self) -> str:
        lines = [f"VTAB-1k, {self.protocol} protocol, {self.model}: {self.count} tasks"]
        for group in GROUPS:
            mean = self.group_mean(group)
            lines.append(f"{group}: {_percent(mean) if mean is not None else 'incomplete'}")
            lines += [
                f"  {score.task:<22}{score.accuracy}  {score.num_test:,} images  lr {score.lr:g}, {score.steps} steps"
                for score in self.scores
                if score.group == group
            ]
        if self.mean is not None:
            lines.append(f"Mean of {self.count}: {_percent(self.mean)}")
            lines += [f"  paper, {name}: {value:.2f} %" for name, value in PAPER_MEANS.items()]
        else:
            lines.append(
                f"Mean of {self.count} tasks: {_percent(self.mean_of_present)}, which is no VTAB score"
            )
            lines.append(f"Missing: {', '.join(self.missing)}")
        return "\n".join(lines)


def table(scores: Sequence[VtabScores]) -> str:
    """Write results side by side as Markdown, the paper's own columns after them."""
    names = [*(result.model for result in scores), *(f"paper: {name}" for name in PAPER_ROWS)]
    lines = ["| task | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for number, task in enumerate(TASKS):
        cells = []
        for result in scores:
            found = [score for score in result.scores if score.task == task.name]
            cells.append(f"{100 * found[0].accuracy.value:.2f}" if found else "missing")
        cells += [f"{row[number]:.1f}" for row in PAPER_ROWS.values()]
        lines.append(f"| {task.name} | " + " | ".join(cells) + " |")
    for group in GROUPS:
        means = [result.group_mean(group) for result in scores]
        cells = ["incomplete" if mean is None else f"{100 * mean:.2f}" for mean in means]
        cells += [f"{paper_group_mean(name, group):.2f}" for name in PAPER_ROWS]
        lines.append(f"| **{group}** | " + " | ".join(cells) + " |")
    totals = [
        f"{100 * result.mean:.2f}"
        if result.mean is not None
        else f"{100 * result.mean_of_present:.2f} ({result.count})"
        for result in scores
    ]
    totals += [f"{PAPER_MEANS[name]:.2f}" for name in PAPER_ROWS]
    lines.append("| **Mean of 19** | " + " | ".join(totals) + " |")
    return "\n".join(lines) + "\n"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"
