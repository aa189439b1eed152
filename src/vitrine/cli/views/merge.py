"""How `vitrine merge` shows the parts of a job."""

from collections.abc import Iterator

from vitrine.cli.lines import Line, NextStep, Wrote
from vitrine.jobs.merge import MergeResult
from vitrine.runtime.files import size_in_words
from vitrine.spelling import counted, some_of


def lines(result: MergeResult) -> Iterator[Line]:
    """Show the parts that are there, and those that are missing or damaged."""
    there = result.num_parts - result.num_missing
    failed = f", {result.num_unreadable:,} of them unreadable" if result.num_unreadable else ""
    yield (
        f"{there:,} of {counted(result.num_parts, 'part')}: {counted(result.num_pictures, 'picture')}{failed}, "
        f"{size_in_words(result.bytes)}"
    )
    if result.missing:
        more = result.num_missing - len(result.missing)
        rest = f" and {more:,} more" if more else ""
        yield f"Missing: parts {', '.join(map(str, result.missing))}{rest}"
    if result.damaged:
        measure = "checksum" if result.is_verified else "size"
        yield f"Damaged, of another {measure} than recorded: {some_of(result.damaged)}"
    if result.manifest is not None:
        yield Wrote(result.manifest)
    elif result.damaged:
        yield NextStep("remove the damaged parts and their records in _job, and run the job's command again")
    else:
        yield NextStep("run the job's command again; it computes the missing parts only")
