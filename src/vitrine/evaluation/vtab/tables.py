"""VTAB results as a Markdown table and as a figure like the paper's Figure 2, with the paper's own results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrine.data.sources.vtab.tasks import GROUPS, TASKS
from vitrine.errors import MissingExtraError
from vitrine.evaluation.vtab.scores import PAPER_MEANS, PAPER_ROWS, VtabScores, paper_group_mean
from vitrine.runtime.files import write_atomically


def table(scores: Sequence[VtabScores]) -> str:
    """Write results as Markdown columns, followed by the paper's."""
    names = [*(result.model for result in scores), *(f"paper: {name}" for name in PAPER_ROWS)]
    lines = ["| task | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for number, task in enumerate(TASKS):
        cells = []
        for result in scores:
            own = [score for score in result.scores if score.task == task.name]
            cells.append(f"{100 * own[0].accuracy.value:.2f}" if own else "missing")
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


def draw_figure(file: Path, scores: VtabScores) -> None:
    """Draw four panels, VTAB and its groups; a mean is drawn only if no task of it is missing."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError("matplotlib", extra="report", purpose="the figure of VTAB") from error
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 4)
    panels: list[tuple[Any, int, float | None]] = [("VTAB", len(TASKS), scores.mean)]
    panels += [
        (group, sum(task.group == group for task in TASKS), scores.group_mean(group)) for group in GROUPS
    ]
    paper = {group: [(row, paper_group_mean(row, group)) for row in PAPER_ROWS] for group in GROUPS}
    for axis, (name, count, mean) in zip(axes, panels, strict=True):
        bars: list[tuple[str, float]] = [] if mean is None else [(scores.model, 100 * mean)]
        bars += PAPER_MEANS.items() if name == "VTAB" else paper[name]
        for place, (label, value) in enumerate(bars):
            is_ours = label == scores.model
            axis.bar(place, value, color="#4267b2" if is_ours else "#b8bcc4")
            axis.text(place, value + 0.5, f"{value:.1f}", ha="center", fontsize=8)
        axis.set_title(f"{name} ({count} tasks)", fontsize=10)
        axis.set_xticks(range(len(bars)), [label for label, _ in bars], rotation=30, ha="right", fontsize=7)
        axis.set_ylim(0, 100)
        axis.spines[["top", "right"]].set_visible(False)
        if mean is None:
            axis.text(0.5, 0.95, f"incomplete: {scores.count} tasks run", ha="center", va="top", fontsize=8,
                      transform=axis.transAxes)  # fmt: skip
    axes[0].set_ylabel("Accuracy [%]")
    with write_atomically(file) as opened:
        figure.savefig(opened, format="png", dpi=150)
