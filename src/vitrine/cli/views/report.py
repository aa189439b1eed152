"""How `vitrine report` shows the headline of a run."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, NextStep, Wrote
from vitrine.cli.views.finetune import interval_text, worst_lines
from vitrine.runs.run_report import RunReport
from vitrine.spelling import counted


def lines(result: RunReport) -> Iterator[Line]:
    """Show steps and accuracy of the run, its worst classes and mistakes, and the page."""
    score = ""
    if result.accuracy is not None and result.interval is not None:
        low, high = result.interval
        score = (
            f", accuracy {100 * result.accuracy:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) on "
            f"{counted(result.num_images, 'validation image')}"
        )
    elif result.mean_average_precision is not None:
        score = (
            f", mean average precision {interval_text(result.mean_average_precision)} on "
            f"{counted(result.num_images, 'validation image')}"
        )
    elif result.dense is not None:
        score = f", {result.dense} on {counted(result.num_images, 'validation picture')}"
    yield f"{result.folder}: {counted(result.steps, 'step')}{score}"
    yield from worst_lines(result.worst, result.worst_by, result.mistakes)
    yield from result.notes
    if result.file is not None:
        yield Wrote(result.file)
        yield NextStep(f"open {glued(result.file)} in a browser")
