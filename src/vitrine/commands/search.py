"""`vitrine search`: the most similar pictures of an index, near-duplicates, and clusters."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_path, as_pictures, as_texts, require_at_least

if TYPE_CHECKING:
    from vitrine.jobs.search import SearchResult


@documented
def search(
    index: Annotated[str | Path, Doc("Folder of an index that vitrine index built")],
    pictures: options.Pictures = None,
    *,
    words: Annotated[
        str | Sequence[str] | None,
        Doc("Instead find the pictures that show this, such as 'a cat'; needs a CLIP or SigLIP [repeatable]"),
    ] = None,
    count: Annotated[int, Doc("Similar pictures per query")] = 10,
    duplicates: Annotated[
        float | None,
        Doc("Instead find groups of pictures with at least this cosine similarity, such as 0.95"),
    ] = None,
    clusters: Annotated[int | None, Doc("Instead divide all pictures into this many clusters")] = None,
    probes: Annotated[
        int | None, Doc("Lists of each segment to compare; more find more and take longer [default: 16]")
    ] = None,
    out: options.Out = None,
    device: options.Device = "auto",
    precision: options.PrecisionWish = "auto",
    overwrite: Annotated[bool, Doc("Replace the results in the output folder")] = False,
) -> "SearchResult":
    """Search an index of pictures: by picture, by words, for near-duplicates or for clusters."""
    require_at_least(1, count=count, clusters=clusters, probes=probes)

    from vitrine.jobs.search import search_index

    return search_index(
        as_path(index),
        as_pictures(pictures),
        words=as_texts(words),
        count=count,
        duplicates=duplicates,
        clusters=clusters,
        probes=probes,
        out=as_path(out),
        device=device,
        precision=precision,
        is_overwriting=overwrite,
    )
