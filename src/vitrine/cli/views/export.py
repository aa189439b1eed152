"""How `vitrine export` shows its plan, its proof and what it wrote."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, NextStep, Wrote
from vitrine.exporting.card import accuracy_lines, proof_lines
from vitrine.exporting.worth import refusal_lines
from vitrine.jobs.export import ExportPlan, ExportResult
from vitrine.spelling import counted


def plan_lines(plan: ExportPlan) -> Iterator[Line]:
    """Show what is exported, and on what images it is compared."""
    images = counted(plan.num_images, f"{plan.images} image")
    yield f"Plan: {plan.model} to {plan.to}, compared on {images}; to {glued(plan.folder)}"


def lines(result: ExportResult) -> Iterator[Line]:
    """Show the proof, sizes, speed and files."""
    yield f"{result.model} -> {glued(result.folder)} ({result.to})"
    yield f"Proof on {result.images} images:"
    yield from (f"  {line}" for line in proof_lines(result.proof))
    yield from (f"  {line}" for line in accuracy_lines(result.accuracy))
    yield "Size: " + ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in result.sizes.items())
    if result.timings:
        yield f"Speed on this machine, {counted(result.threads, 'thread')}, milliseconds per batch:"
    for size in sorted({timing.batch_size for timing in result.timings}):
        of_size = [timing for timing in result.timings if timing.batch_size == size]
        figures = (f"{timing.engine} {timing.precision} {timing.milliseconds:,.1f}" for timing in of_size)
        yield f"  {counted(size, 'image')}: {', '.join(figures)}"
    yield from (f"Note: {note}" for note in result.notes)
    yield from refusal_lines(result.refused)
    if result.refused:
        yield NextStep("use --allow-loss to keep it")
    yield from map(Wrote, result.wrote)
    yield NextStep(f"see {glued(result.folder / 'README.md')} for how to run it")
