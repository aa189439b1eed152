"""The page of `vitrine search`: similar pictures, near-duplicates or clusters, as thumbnails."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.data.sources.in_memory import PictureList
from vitrine.data.sources.source import Source
from vitrine.reports.pages import render, thumbnail

# Limits per page, so that any browser opens it quickly; the table holds everything.
MOST_GROUPS = 40
_TITLES = {"similar": "Similar pictures", "duplicates": "Near-duplicates", "clusters": "Clusters"}


@dataclass(frozen=True, kw_only=True)
class Match:
    """A picture of the index and its cosine similarity to the query."""

    path: str
    cosine: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """Pictures that belong together: similar to a query, near-duplicates, or a cluster."""

    name: str
    total: int
    matches: tuple[Match, ...]
    query: tuple[Source, int] | None = None


def render_search(kind: str, groups: Sequence[Group], *, num_groups: int, model: str) -> str:
    """Render the page of the first groups."""
    return render(
        "search.html.j2",
        title=_TITLES[kind],
        model=model,
        num_groups=num_groups,
        groups=[
            {
                "name": group.name,
                "total": group.total,
                "picture": None if group.query is None else thumbnail(*group.query),
                "matches": [
                    {
                        "path": match.path,
                        "cosine": f"{match.cosine:.3f}",
                        "picture": thumbnail(PictureList([match.path]), 0),
                    }
                    for match in group.matches
                ],
            }
            for group in groups[:MOST_GROUPS]
        ],
    )
