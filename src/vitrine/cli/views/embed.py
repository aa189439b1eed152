"""How `vitrine embed` shows what it wrote."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, NextStep, Wrote
from vitrine.cli.views.parts import parts_lines
from vitrine.jobs.embed import EmbedResult
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
