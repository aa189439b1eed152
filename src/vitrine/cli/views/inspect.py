"""How `vitrine inspect` shows its plan and its headline."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, NextStep, Wrote
from vitrine.jobs.inspect import InspectPlan, InspectResult
from vitrine.spelling import counted, with_name

MOST_UNREADABLE_SHOWN = 5


def plan_lines(plan: InspectPlan) -> Iterator[Line]:
    """Show the model that is inspected, and on which images."""
    size = "x".join(map(str, plan.size))
    images = "no images"
    if plan.num_images:
        images = f"{counted(plan.num_images, 'image')}, {plan.num_shown} with figures of their own"
    yield f"Plan: {plan.model} at {size} px on {plan.device}, {images}; to {glued(plan.folder)}"


def lines(result: InspectResult) -> Iterator[Line]:
    """Show the headline of each analysis, what was skipped and where the figures are."""
    explained = 100 * result.explained_variance
    yield f"Filters: the components drawn explain {explained:.0f} % of the variance"
    if result.distance_by_layer:
        first, last = result.distance_by_layer[0], result.distance_by_layer[-1]
        yield (
            f"Attention distance over {counted(result.num_images, 'image')}: median over heads {first:.0f} px in the "
            f"first layer, {last:.0f} px in the last"
        )
    if result.num_outliers is not None:
        yield f"Outlier tokens in the images shown: {result.num_outliers}"
    shown = list(result.unreadable.items())[:MOST_UNREADABLE_SHOWN]
    yield from (f"Skipped: {with_name(why, path)}" for path, why in shown)
    if len(result.unreadable) > len(shown):
        yield f"  and {len(result.unreadable) - len(shown):,} more in inspect.html"
    if result.figures:
        yield Wrote(result.figures[0].parent, f"{len(result.figures)} figures as PNG and SVG")
    yield from map(Wrote, result.wrote)
    page = next((path for path in result.wrote if path.suffix == ".html"), None)
    if page is None:
        yield NextStep(glued(f"numpy.load({str(result.wrote[0])!r})"))
    else:
        yield NextStep(f"open {glued(page)} in a browser")
