"""How `vitrine search` shows what it found."""

from collections.abc import Iterator

from vitrine.cli.command_line import glued
from vitrine.cli.lines import Line, NextStep, Table, Wrote
from vitrine.jobs.search import SearchResult
from vitrine.spelling import counted, with_first

# Queries or groups that are listed, and pictures of each.
MOST_GROUPS, MOST_LISTED = 10, 5


def lines(result: SearchResult) -> Iterator[Line]:
    """Show the first groups with their most similar pictures."""
    for group in result.groups[:MOST_GROUPS]:
        yield group.name if result.kind == "similar" else f"{group.name}: {counted(group.total, 'picture')}"
        rows = [(f"{match.cosine:.3f}", match.path) for match in group.matches[:MOST_LISTED]]
        yield Table(rows, right=(0,), indent=2)
    kind = {"similar": "query", "duplicates": "group of near-duplicate", "clusters": "cluster"}[result.kind]
    plural = {"query": "queries", "group of near-duplicate": "groups of near-duplicates"}.get(
        kind, f"{kind}s"
    )
    number = f"{result.num_groups:,} {kind if result.num_groups == 1 else plural}"
    yield f"{number} in {counted(result.num_pictures, 'picture')} of {result.index}"
    if result.unreadable:
        yield f"Skipped, cannot be read: {with_first(result.unreadable, 'picture')}"
    yield from map(Wrote, result.wrote)
    yield NextStep(f"open {glued(result.wrote[0])} in a browser")
