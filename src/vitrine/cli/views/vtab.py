"""How `vitrine vtab` shows its plan and its scores."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, NextStep, Table, Wrote
from vitrine.data.sources.vtab.tasks import GROUPS, TASKS
from vitrine.evaluation.vtab.protocol import VtabPlan
from vitrine.evaluation.vtab.scores import PAPER_MEANS
from vitrine.jobs.vtab import VtabResult
from vitrine.spelling import counted


def lines(result: VtabResult) -> Iterator[Line]:
    """Show every task by group, the mean beside the paper's, and the missing tasks."""
    scores = result.scores
    yield f"VTAB-1k, {scores.protocol} protocol, {scores.model}: {scores.count} tasks"
    for group in GROUPS:
        mean = scores.group_mean(group)
        yield f"{group}: {'incomplete' if mean is None else percent(mean)}"
        rows = [
            (
                score.task,
                str(score.accuracy),
                f"{score.num_test:,} images",
                f"lr {score.lr:g}",
                counted(score.steps, "step"),
            )
            for score in scores.scores
            if score.group == group
        ]
        if rows:
            yield Table(rows, indent=2, right=(2,))
    if scores.mean is not None:
        yield f"Mean of {scores.count}: {percent(scores.mean)}"
        yield from (f"  paper, {name}: {value:.2f} %" for name, value in PAPER_MEANS.items())
    else:
        yield f"Mean of {scores.count} tasks: {percent(scores.mean_of_present)}, not a VTAB score"
        yield f"Missing: {', '.join(scores.missing)}"
    yield from map(Wrote, result.wrote)
    if result.wrote:
        yield NextStep(f"open {glued(result.wrote[-1])}")


def plan_lines(plan: VtabPlan) -> Iterator[Line]:
    """Show which tasks are trained, and how."""
    protocol = plan.protocol
    steps = " or ".join(f"{steps:,}" for steps in protocol.steps)
    yield (
        f"Plan: {plan.num_tasks} of {len(TASKS)} tasks by the {protocol.name} protocol, "
        f"{counted(plan.num_runs, 'run')} of {steps} steps with {protocol.batch_size} images each at "
        f"{protocol.image_size} px; to {glued(plan.folder)}"
    )


def percent(share: float) -> str:
    """Write a share: `77.63 %`."""
    return f"{100 * share:.2f} %"
