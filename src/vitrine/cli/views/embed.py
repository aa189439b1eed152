"""How `vitrine embed` shows what it wrote."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, Next, NextStep, Wrote
from vitrine.jobs.embed import EmbedResult
from vitrine.jobs.parts_job import PartsResult
from vitrine.runtime.places import suffix_of
from vitrine.spelling import counted, with_first


def lines(result: EmbedResult) -> Iterator[Line]:
    """Show how many feature vectors there are, and how to read them."""
    unreadable = len(result.unreadable) if result.parts is None else result.parts.num_unreadable
    yield f"{counted(result.num_pictures - unreadable, 'picture')}, {result.width} features each"
    if result.unreadable:
        yield f"Skipped, cannot be read: {with_first(result.unreadable, 'picture', count=unreadable)}"
    if result.parts is not None:
        yield from parts_lines(result.parts)
        return
    yield from map(Wrote, result.wrote)
    file = result.wrote[0]
    reader = "pyarrow.parquet.read_table" if suffix_of(file) == ".parquet" else "numpy.load"
    yield NextStep(glued(f"{reader}({str(file)!r})"))


def parts_lines(parts: PartsResult) -> Iterator[Line]:
    """Show what this process computed and skipped, how fast, and whether other parts are missing."""
    if parts.num_computed:
        yield f"{parts.rate:,.0f} pictures/s; the model waited for data for {parts.waiting:.0%} of the time"
    if parts.num_skipped:
        yield f"{counted(parts.num_skipped, 'picture')} skipped: finished by an earlier run"
    first, stop = parts.own_parts
    which = "no parts" if first == stop else f"parts {first} to {stop - 1}"
    note = counted(parts.num_parts, "part")
    yield Wrote(parts.folder, note if parts.manifest else f"{which} of {parts.num_parts}")
    if parts.manifest:
        yield Wrote(parts.manifest)
    else:
        yield Next("merge", (parts.folder,), note="when all processes are done")
