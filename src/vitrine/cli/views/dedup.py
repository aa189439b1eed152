"""How `vitrine dedup` shows the copies that it found."""

from collections.abc import Iterator

from vitrine.cli.command_line import option
from vitrine.cli.lines import Line, NextStep, Wrote
from vitrine.jobs.dedup import EXCLUDE, DedupResult
from vitrine.spelling import counted


def lines(result: DedupResult) -> Iterator[Line]:
    """Show how many images were compared, and the copies by method."""
    tests = ", ".join(f"{name} ({count:,})" for name, count in result.num_test.items())
    yield f"{counted(result.num_train, 'training image')} compared with {tests}"
    if result.num_pairs:
        methods = "".join(f", {count:,} by {method}" for method, count in result.by_method.items())
        images, pairs = counted(result.num_excluded, "training image"), counted(result.num_pairs, "pair")
        yield f"Copies of test images: {images}, {pairs}{methods}"
    else:
        yield "No training image is a copy of a test image"
    if result.num_unreadable:
        yield f"Skipped, cannot be read: {counted(result.num_unreadable, 'file')}"
    yield from map(Wrote, result.wrote)
    if result.num_excluded:
        exclude = next(path for path in result.wrote if path.name == EXCLUDE)
        yield NextStep(f"look at the pairs, then train with {option('exclude', exclude)}")
