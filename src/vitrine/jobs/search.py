"""The work behind `vitrine search`: the most similar pictures of an index, near-duplicates, and clusters."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.batch.index_segment import unit
from vitrine.batch.vector_index import VectorIndex
from vitrine.checkpoints import load
from vitrine.checkpoints.text import load_texts
from vitrine.data.sources.in_memory import PictureList
from vitrine.data.sources.picture_paths import open_pictures
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.features import weights_hash
from vitrine.evaluation.outputs import Wish
from vitrine.jobs.parts_job import open_predictor
from vitrine.models import Model
from vitrine.models.sizes import shape_from_json
from vitrine.reports.pages import write_page
from vitrine.reports.search_page import MOST_GROUPS, Group, Match, render_search
from vitrine.runtime.files import write_atomically
from vitrine.runtime.optional import optional
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import quiet, track
from vitrine.runtime.result import Result
from vitrine.spelling import printable

PAGE, TABLE = "search.html", "matches.csv"
COUNT = 10
# Neighbours of each picture that are compared for duplicates: larger groups are found through one another.
_DUPLICATE_NEIGHBOURS = 10
_SAMPLES_PER_CLUSTER, _ROUNDS = 256, 20
_SHOWN_PER_GROUP, _QUERIES_AT_A_TIME = 12, 1024


@dataclass(frozen=True, kw_only=True, repr=False)
class SearchResult(Result):
    """The pictures found, by what was asked for: a picture, a group of copies or a cluster."""

    index: str
    model: str
    num_pictures: int
    kind: str
    """similar, duplicates or clusters."""
    groups: tuple[Group, ...]
    """The first groups with their first pictures; the table has all."""
    num_groups: int
    unreadable: dict[str, str]
    wrote: tuple[Path, ...]


def search_index(
    folder: Path,
    pictures: Iterable[Any],
    *,
    words: Sequence[str],
    count: int,
    duplicates: float | None,
    clusters: int | None,
    probes: int | None,
    out: Path | None,
    device: str,
    precision: Wish,
    is_overwriting: bool,
) -> SearchResult:
    """Search an index for pictures like the given ones or matching words, for near-duplicates, or for clusters."""
    index = VectorIndex.open(folder)
    if probes is not None:
        index.probes = probes
    places = list(pictures)
    if sum((bool(places), bool(words), duplicates is not None, clusters is not None)) != 1:
        raise ConfigError("needs pictures or words to search for, or one of duplicates and clusters")
    results = new_output_folder(out, verb="search", files=(PAGE, TABLE), is_overwriting=is_overwriting)
    unreadable: dict[str, str] = {}
    table = results / TABLE
    with removed_if_empty(results):
        if clusters is not None:
            kind, shown = "clusters", _clusters(index, clusters, table)
            num_groups = len(shown)
        elif duplicates is not None:
            kind, groups = "duplicates", duplicate_groups(index, least_cosine=duplicates)
            shown, num_groups = _write_table(table, groups, kind="group", most=MOST_GROUPS)
        elif words:
            kind = "similar"
            shown, num_groups = _write_table(
                table, _of_words(index, words, count=count), kind="query", most=MOST_GROUPS
            )
        else:
            kind = "similar"
            groups = _similar(
                index,
                _queries(places),
                count=count,
                device=device,
                precision=precision,
                unreadable=unreadable,
            )
            shown, num_groups = _write_table(table, groups, kind="query", most=MOST_GROUPS)
    page = write_page(
        results / PAGE, render_search(kind, shown, num_groups=num_groups, model=index.record.model)
    )
    return SearchResult(
        index=str(folder),
        model=index.record.model,
        num_pictures=len(index) - len(index.removed),
        kind=kind,
        groups=tuple(shown),
        num_groups=num_groups,
        unreadable=unreadable,
        wrote=(page, table),
    )


def _queries(places: list[Any]) -> Source:
    if all(isinstance(place, str) for place in places):
        source, _ = open_pictures(places)
        if source is None:
            raise DataError(f"{printable(' '.join(places))} holds no pictures")
        return source
    return PictureList(places)


def _similar(
    index: VectorIndex,
    queries: Source,
    *,
    count: int,
    device: str,
    precision: Wish,
    unreadable: dict[str, str],
) -> Iterator[Group]:
    predictor = open_predictor(
        index.record.model, num_pictures=len(queries), device=device, precision=precision,
        image_size=shape_from_json(index.record.shape), batch_size=None, workers=None,
    )  # fmt: skip
    _require_unchanged(index, predictor.model)
    for rows in predictor.stream(queries, wanted="features"):
        cosines, numbers = index.search(unit(rows.values.numpy()), count)
        for row in range(len(rows.values)):
            name = printable(queries.name(rows.start + row))
            if row in rows.failures:
                unreadable[name] = rows.failures[row]
                continue
            matches = _matches(index, cosines[row], numbers[row])
            yield Group(name=name, total=len(matches), matches=matches, query=(queries, rows.start + row))


def _of_words(index: VectorIndex, words: Sequence[str], *, count: int) -> Iterator[Group]:
    """Find the pictures whose vectors are nearest to those of texts, by the text tower of the index's model."""
    texts = load_texts(index.record.model)
    with quiet():  # its notes were reported when the index was built
        _require_unchanged(
            index, load(index.record.model, image_size=shape_from_json(index.record.shape)).model
        )
    vectors = texts.embed(words).numpy()
    if vectors.shape[1] != index.record.width:
        raise ConfigError(
            f"{index.record.model} gives texts {vectors.shape[1]} values and the index has {index.record.width} per "
            "picture; build the index again with the whole model"
        )
    cosines, numbers = index.search(unit(vectors), count)
    for row, text in enumerate(words):
        matches = _matches(index, cosines[row], numbers[row])
        yield Group(name=printable(text), total=len(matches), matches=matches)


def _require_unchanged(index: VectorIndex, model: Model) -> None:
    if index.record.weights not in (weights_hash(model), weights_hash(model, includes_head=True)):
        raise ConfigError(
            f"{index.record.model} has changed since the index was built: its vectors cannot be compared"
        )


def duplicate_groups(index: VectorIndex, *, least_cosine: float) -> Iterator[Group]:
    """Find groups of pictures of which each is at least this similar to another one, largest first."""
    parent: dict[int, int] = {}
    best: dict[int, float] = {}

    def root(number: int) -> int:
        while parent.setdefault(number, number) != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for start, vectors in track(index.vectors(), "Comparing"):
        for at in range(0, len(vectors), _QUERIES_AT_A_TIME):
            some = vectors[at : at + _QUERIES_AT_A_TIME]
            own = np.arange(start + at, start + at + len(some))
            cosines, numbers = index.search(some, _DUPLICATE_NEIGHBOURS)
            is_pair = (cosines >= least_cosine) & (numbers != own[:, None]) & (numbers >= 0)
            is_pair[np.isin(own, index.removed)] = False
            for row, column in np.argwhere(is_pair).tolist():
                one, other, cosine = int(own[row]), int(numbers[row, column]), float(cosines[row, column])
                parent[root(one)] = root(other)
                best[one] = max(best.get(one, -1), cosine)
                best[other] = max(best.get(other, -1), cosine)
    members: dict[int, list[int]] = {}
    for number in sorted(parent):
        members.setdefault(root(number), []).append(number)
    for group, same in enumerate(sorted(members.values(), key=lambda one: (-len(one), one))):
        pairs = zip(index.names(same), same, strict=True)
        matches = tuple(Match(path=name, cosine=best[number]) for name, number in pairs)
        yield Group(name=f"group {group}", total=len(same), matches=matches)


def divided(index: VectorIndex, count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Divide the pictures into clusters by spherical k-means on a sample; return cluster and cosine of each.

    Clusters are numbered from the largest, from 0; pictures that are gone have -1.
    """
    faiss = optional("faiss", extra="search", purpose="clusters")
    live = len(index) - len(index.removed)
    if not 1 <= count <= live:
        raise ConfigError(
            f"must be from 1 to {live:,} (pictures of the index), got {count}", option="clusters"
        )
    step = max(1, len(index) // (count * _SAMPLES_PER_CLUSTER))
    sample = np.concatenate([rows[(-start) % step :: step] for start, rows in index.vectors()])
    means = faiss.Kmeans(
        index.record.width, count, niter=_ROUNDS, seed=0, spherical=True, min_points_per_centroid=1
    )
    means.train(np.ascontiguousarray(sample, dtype=np.float32))
    clusters, cosines = np.empty(len(index), dtype=np.int32), np.empty(len(index), dtype=np.float32)
    for start, rows in track(index.vectors(), "Clustering"):
        nearest, numbers = means.index.search(np.ascontiguousarray(rows, dtype=np.float32), 1)
        clusters[start : start + len(rows)], cosines[start : start + len(rows)] = numbers[:, 0], nearest[:, 0]
    clusters[index.removed] = -1
    sizes = np.bincount(clusters[clusters >= 0], minlength=count)
    place = np.empty(count + 1, dtype=np.int32)
    place[np.argsort(-sizes, kind="stable")], place[-1] = np.arange(count), -1
    return place[clusters], cosines


def _clusters(index: VectorIndex, count: int, table: Path) -> list[Group]:
    """Write the cluster of every picture, and return the pictures nearest to the centre of each."""
    clusters, cosines = divided(index, count)
    with write_atomically(table, mode="w") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["cluster", "path", "cosine"])
        for start, paths in index.paths():
            stop = start + len(paths)
            rows = zip(clusters[start:stop].tolist(), paths, cosines[start:stop].tolist(), strict=True)
            writer.writerows((number, path, f"{cosine:.6f}") for number, path, cosine in rows if number >= 0)
    groups = []
    for number in range(count):
        members = np.flatnonzero(clusters == number)
        if len(members):
            nearest = members[np.argsort(-cosines[members], kind="stable")[:_SHOWN_PER_GROUP]]
            matches = _matches(index, cosines[nearest], nearest)
            groups.append(Group(name=f"cluster {number}", total=len(members), matches=matches))
    return groups


def _matches(index: VectorIndex, cosines: NDArray[Any], numbers: NDArray[np.int64]) -> tuple[Match, ...]:
    there = [
        (int(number), float(cosine)) for number, cosine in zip(numbers, cosines, strict=True) if number >= 0
    ]
    names = index.names([number for number, _ in there])
    return tuple(Match(path=name, cosine=cosine) for name, (_, cosine) in zip(names, there, strict=True))


def _write_table(table: Path, groups: Iterable[Group], *, kind: str, most: int) -> tuple[list[Group], int]:
    """Write groups as they are found; return the first `most`, and how many there are."""
    kept: list[Group] = []
    count = 0
    with write_atomically(table, mode="w") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([kind, "path", "cosine"])
        for group in groups:
            count += 1
            writer.writerows((group.name, match.path, f"{match.cosine:.6f}") for match in group.matches)
            if len(kept) < most:
                kept.append(replace(group, matches=group.matches[:_SHOWN_PER_GROUP]))
    return kept, count
