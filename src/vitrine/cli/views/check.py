"""How `vitrine check` shows a data set."""

from collections.abc import Iterator

from vitrine.cli.command_line import command, glued
from vitrine.cli.lines import Line, Next, NextStep, Table, Wrote
from vitrine.data.auditing.scan import conversion_text
from vitrine.data.sources.folder_walk import skipped_text
from vitrine.jobs.check import CheckPlan, CheckResult
from vitrine.spelling import counted

# The table on the terminal stays on one screen; the page has all classes.
MOST_CLASSES = 20
MOST_ISSUES = 12
# The first step for problems that keep training from starting.
FIRST = {
    "single class": "add a folder with images of another class",
}


def plan_lines(plan: CheckPlan) -> Iterator[Line]:
    """Show the data that will be read."""
    yield f"Plan: read {counted(plan.num_images, 'image')} of {plan.data}; write to {glued(plan.out)}"


def lines(result: CheckResult) -> Iterator[Line]:
    """Show counts, conversions, skipped files and the first problems."""
    formats = ", ".join(f"{count:,} {name}" for name, count in result.formats.items()) or "none readable"
    modes = ", ".join(f"{count:,} {name}" for name, count in result.modes.items())
    height, width = result.median_size
    yield (
        f"{counted(result.num_images, 'image')} in {result.data}: {formats} ({modes}); "
        f"median {height} x {width} (height x width)"
    )
    yield from class_table(result)
    if result.converted:
        yield conversion_text(result.converted)
    if result.passed_over:
        yield skipped_text(result.passed_over, result.passed_over_names)
    yield from problem_lines(result)
    yield from suspect_lines(result)
    yield from map(Wrote, result.wrote)
    yield next_step(result)


def class_table(result: CheckResult) -> Iterator[Line]:
    """Show the number of images by class and split."""
    splits = list(result.counts)
    classes = list(result.counts[splits[0]])
    if result.numbers:
        for split, (low, mean, high) in result.numbers.items():
            where = "" if len(splits) == 1 else f" of {split}"
            yield f"  {classes[0]}{where}: a number to predict, mean {mean:.4g}, from {low:.4g} to {high:.4g}"
        return
    if not classes:
        return
    rows = [
        (name, *(f"{result.counts[split][name]:,}" for split in splits)) for name in classes[:MOST_CLASSES]
    ]
    yield Table(rows, header=("class", *splits), right=range(1, 1 + len(splits)), indent=2)
    if len(classes) > MOST_CLASSES:
        yield f"  and {len(classes) - MOST_CLASSES} more classes"


def problem_lines(result: CheckResult) -> Iterator[Line]:
    """Count the problems by kind and show the first ones."""
    if not result.issues:
        yield "No problems found"
        return
    kinds = ", ".join(f"{count:,} {problem}" for problem, count in result.problems.items())
    yield f"{counted(len(result.issues), 'problem')}: {kinds}"
    for issue in result.issues[:MOST_ISSUES]:
        yield f"  {issue.problem}: {issue.path}: {issue.detail}"
    if len(result.issues) > MOST_ISSUES:
        yield f"  and {len(result.issues) - MOST_ISSUES:,} more in issues.csv"


def suspect_lines(result: CheckResult) -> Iterator[Line]:
    """Count the labels that are likely wrong and show the first ones."""
    if result.suspects is None:
        return
    if not result.suspects:
        yield "No suspicious labels found"
        return
    yield f"{counted(len(result.suspects), 'label')} likely wrong"
    for one in result.suspects[:MOST_ISSUES]:
        yield f"  {one.path}: {one.label}, rather {one.suggested} ({100 * one.probability:.1f} %)"
    if len(result.suspects) > MOST_ISSUES:
        yield f"  and {len(result.suspects) - MOST_ISSUES:,} more in labels.csv"


def next_step(result: CheckResult) -> Line:
    """Name the next command, after the fixes that training needs."""
    first = next((todo for problem, todo in FIRST.items() if problem in result.problems), "")
    if not any(result.counts.values()):
        first = "put the images of each class into a folder with its name"
    if list(result.counts) == ["test"]:
        return Next("evaluate", ("MODEL", result.data))
    if not first:
        return Next("finetune", (result.data,))
    return NextStep(f"{first}, then: {command('finetune', result.data)}")
