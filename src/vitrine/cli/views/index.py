"""How `vitrine index` shows what an index holds."""

from collections.abc import Iterator

from vitrine.cli.lines import Line, Next, Wrote
from vitrine.jobs.index import IndexResult
from vitrine.spelling import counted, with_first


def lines(result: IndexResult) -> Iterator[Line]:
    """Show the size of the index and what has changed."""
    yield f"{counted(result.num_pictures, 'picture')}, {result.width} features each"
    changes = [
        f"{number:,} {word}"
        for number, word in (
            (result.num_added, "added"),
            (result.num_removed, "removed"),
            (result.num_unchanged, "unchanged"),
        )
        if number
    ]
    yield ", ".join(changes) or "Nothing has changed"
    if result.unreadable:
        yield (
            "Skipped, cannot be read: "
            f"{with_first(result.unreadable, 'picture', count=result.num_unreadable)}"
        )
    yield Wrote(result.folder)
    yield Next("search", (result.folder, "photo.jpg"))
