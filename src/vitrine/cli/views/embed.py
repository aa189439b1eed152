"""How `vitrine embed` shows what it wrote."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, NextStep, Wrote
from vitrine.jobs.embed import EmbedResult
from vitrine.spelling import counted, with_first


def lines(result: EmbedResult) -> Iterator[Line]:
    """Show how many feature vectors there are, and how to read them."""
    yield f"{counted(result.num_pictures - len(result.unreadable), 'picture')}, {result.width} features each"
    if result.unreadable:
        yield f"Skipped, cannot be read: {with_first(result.unreadable, 'picture')}"
    yield from map(Wrote, result.wrote)
    file = result.wrote[0]
    reader = "pyarrow.parquet.read_table" if file.suffix == ".parquet" else "numpy.load"
    yield NextStep(glued(f"{reader}({str(file)!r})"))
