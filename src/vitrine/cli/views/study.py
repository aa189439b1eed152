"""How `vitrine study` shows the list of studies, its plan and the verdicts."""

from collections.abc import Iterator

from vitrine.cli.command_line import option
from vitrine.cli.lines import Line, Next, NextStep, Wrote
from vitrine.jobs.study import StudyLine, StudyResult
from vitrine.spelling import counted, duration
from vitrine.studies.execution import MatmulRate, StudyPlan


def lines(result: StudyResult) -> Iterator[Line]:
    """Show the cost of every listed study, or the verdict of every study that ran."""
    if result.is_for_cifar:
        yield "Costs are those of a data set like CIFAR-10; pass DATA for the costs of yours"
    if result.rate is not None:
        yield rate_sentence(result.rate)
    yield from result.notes
    for line in result.lines:
        yield from verdict_lines(line) if line.verdict else cost_lines(line, result.scale)
    yield from (f"Failed: {reason}" for reason in result.failed)
    pages = [line.page for line in result.lines if line.page is not None]
    if result.document is not None:
        yield Wrote(result.document)
    elif pages:
        yield from (Wrote(page, "results.jsonl beside it") for page in pages)
        if all(line.finished == line.runs for line in result.lines):
            yield NextStep(f"the same command with a larger {option('seeds')} runs only the new seeds")
        else:
            yield NextStep("the same command continues where it stopped")
    else:
        yield Next("study", ("NAME", "DATA"), {"scale": "small"})


def cost_lines(line: StudyLine, scale: str) -> Iterator[Line]:
    """Show a study before it runs."""
    yield f"{line.name} ({line.where})"
    yield f"  {line.claim}"
    yield (
        f"  scale {scale}: {counted(line.runs, 'run')}, {line.exaflops:.3g} exaFLOPs, about "
        f"{duration(line.estimated_seconds)}"
    )


def verdict_lines(line: StudyLine) -> Iterator[Line]:
    """Show a study that ran."""
    yield f"{line.name}: {line.verdict} ({line.finished} of {counted(line.runs, 'run')})"
    yield from (f"  {finding}" for finding in line.findings)


def plan_lines(plan: StudyPlan) -> Iterator[Line]:
    """Show what is about to run."""
    if plan.cost is None or plan.rate is None:
        yield f"All {counted(plan.num_runs, 'run')} have finished"
        return
    side_by_side = f", {plan.jobs} at a time" if plan.jobs > 1 else ""
    yield (
        f"Plan: {plan.num_unfinished} of {counted(plan.num_runs, 'run')} left, {plan.cost.exaflops:.3g} exaFLOPs, "
        f"about {duration(plan.cost.seconds(plan.jobs))}{side_by_side}. {rate_sentence(plan.rate)}"
    )


def rate_sentence(rate: MatmulRate) -> str:
    """State what the estimated time is based on."""
    tflops = f"{rate.flops_per_second / 1e12:.3g} TFLOP/s"
    if rate.measured_on is None:
        return f"Time estimated for {tflops}, as stated"
    return f"Time estimated for {tflops}, measured on this {rate.measured_on}; state another with {option('rate')}"
