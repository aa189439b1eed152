"""How `vitrine serve` shows its plan, and what was served."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line
from vitrine.jobs.serve import ServePlan, ServeResult
from vitrine.spelling import counted


def plan_lines(plan: ServePlan) -> Iterator[Line]:
    """Show what is served, and where."""
    names = " and ".join(plan.models) or "no model until the run has its first weights"
    run = f", run {plan.run}" if plan.run and plan.run not in plan.models else ""
    yield (
        f"Plan: {names}{run}; {plan.workers} x {counted(plan.threads, 'thread')}, target latency "
        f"{plan.target_seconds * 1000:.0f} ms, at most {plan.waiting:,} waiting requests"
    )
    yield (
        f"Serving at {glued(plan.address)} (page) and {glued(plan.address + '/docs')} (API); stop with Ctrl-C"
    )


def lines(result: ServeResult) -> Iterator[Line]:
    """Show how much was computed."""
    yield f"Stopped after {result.seconds:.0f} s: {counted(result.pictures, 'picture')} computed, none kept"
