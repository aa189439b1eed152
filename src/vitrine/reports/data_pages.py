"""The pages of `vitrine check` (problems, samples), `dedup` (pairs of copies), `suggest` (pictures to label)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from vitrine.data.auditing.duplicates import Duplicate, ImageRef
from vitrine.data.auditing.issues import REMEDIES
from vitrine.data.auditing.overlap import TRAIN, Overlap
from vitrine.data.auditing.scan import ScanReport
from vitrine.data.decoding.decode import decode
from vitrine.data.sources.source import Source
from vitrine.errors import DataError, ImageError
from vitrine.evaluation.label_errors import Suspect
from vitrine.reports.pages import render, thumbnail
from vitrine.runtime.progress import track
from vitrine.spelling import printable

# Limits per page, so that any browser opens it quickly. The CSV files hold everything.
MOST_BAD = 60
MOST_PAIRS = 60
MOST_SUSPECTS = 60
MOST_SUGGESTIONS = 200
MOST_SAMPLES = 240
MOST_SAMPLES_A_CLASS = 6
# Problems that no picture shows, because they concern neither a file nor a pair.
ELSEWHERE = (
    "damaged shard",
    "unlabelled image",
    "hidden image",
    "tiny image",
    "extreme shape",
    "empty class",
    "missing class",
    "single class",
    "tiny class",
    "uneven classes",
)
_PAIR_KINDS = (
    (
        "leak",
        "Leaks between splits",
        "The same image is in two splits, so the score on the second is optimistic.",
    ),
    ("conflict", "Copies with different labels", "The same image has two labels, so one of them is wrong."),
    ("exact", "Equal files", "Identical files in one split."),
    ("near", "Near duplicates", "Recompressed, resized, brightened or slightly shifted copies in one split."),
)


def render_scan(
    report: ScanReport, splits: Mapping[str, Source], *, suspects: Sequence[Suspect] | None = None
) -> str:
    """Render the page of `vitrine check`; `suspects` are images of the first split with likely wrong labels."""
    bad = [
        _bad_file(splits[split], index)
        for split, indices in report.bad.items()
        for index in indices[:MOST_BAD]
    ][:MOST_BAD]
    groups = []
    for key, title, words in _PAIR_KINDS:
        pairs = [pair for pair in report.duplicates if _pair_kind(pair) == key]
        if pairs:
            shown = [_pair(pair, splits) for pair in track(pairs[:MOST_PAIRS], f"Drawing: {title}")]
            groups.append({"title": title, "words": words, "total": len(pairs), "pairs": shown})
    return render(
        "scan.html.j2",
        report=report,
        address=printable(report.address),
        bad=bad,
        groups=groups,
        suspects=None if suspects is None else _suspect_cards(suspects, next(iter(splits.values()))),
        num_suspects=len(suspects or ()),
        table=_class_table(report),
        remedies={problem: REMEDIES[problem] for problem in report.problems},
        samples=_samples(report, splits),
        issues=[
            {"path": printable(issue.path), "problem": issue.problem, "detail": issue.detail}
            for issue in report.issues
            if issue.problem in ELSEWHERE
        ],
    )


def render_overlap(overlap: Overlap, train: Source, tests: Mapping[str, Source]) -> str:
    """Render the page of `vitrine dedup`, least similar pairs first: those are worth checking."""
    sources = {TRAIN: train, **tests}
    ordered = sorted(overlap.pairs, key=lambda shared: shared.pair.similarity)
    chosen = [*ordered[: 2 * MOST_PAIRS], *ordered[2 * MOST_PAIRS :][-MOST_PAIRS:]]
    return render(
        "pairs.html.j2",
        overlap=overlap,
        address=printable(train.address),
        pairs=[
            _pair(shared.pair, sources) | {"method": shared.method}
            for shared in track(chosen, "Drawing pairs of pictures")
        ],
    )


class Guess(Protocol):
    """A picture with the class that a model gives it."""

    @property
    def path(self) -> str:
        """Its path."""

    @property
    def predicted(self) -> str:
        """The most likely class."""

    @property
    def confidence(self) -> float:
        """The probability of that class."""


def render_suggestions(
    source: Source, indices: Sequence[int], guesses: Sequence[Guess], *, model: str, num_pictures: int
) -> str:
    """Render the page of `vitrine suggest`: pictures `indices` of a source, with the model's guess about each."""
    pairs = list(zip(indices, guesses, strict=True))[:MOST_SUGGESTIONS]
    cards = [
        {
            "picture": thumbnail(source, index),
            "path": one.path,
            "predicted": one.predicted,
            "confidence": one.confidence,
        }
        for index, one in track(pairs, "Drawing pictures")
    ]
    return render(
        "suggestions.html.j2",
        cards=cards,
        num_chosen=len(guesses),
        num_pictures=num_pictures,
        model=printable(model),
    )


def _suspect_cards(suspects: Sequence[Suspect], source: Source) -> list[dict[str, Any]]:
    return [
        {
            "picture": thumbnail(source, one.index),
            "path": printable(source.name(one.index)),
            "label": printable(source.classes[one.label]),
            "suggested": printable(source.classes[one.suggested]),
            "probability": one.probability,
        }
        for one in track(suspects[:MOST_SUSPECTS], "Drawing suspicious labels")
    ]


def _bad_file(source: Source, index: int) -> dict[str, Any]:
    name = printable(source.name(index))
    problem, detail = "unreadable", ""
    try:
        decode(source.read(index).data, name=name)
    except ImageError as error:
        problem, detail = error.kind, str(error)
    except DataError as error:
        detail = str(error)
    return {
        "path": name,
        "problem": problem,
        "detail": detail.removeprefix(name).strip() or "cannot be read",
        "picture": thumbnail(source, index),
    }


def _pair_kind(pair: Duplicate) -> str:
    if pair.is_leak:
        return "leak"
    if pair.has_conflict:
        return "conflict"
    return "exact" if pair.is_exact else "near"


def _pair(pair: Duplicate, sources: Mapping[str, Source]) -> dict[str, Any]:
    return {
        "similarity": "equal files" if pair.is_exact else f"{pair.similarity:.3f}",
        "sides": [_side(pair.first, sources), _side(pair.second, sources)],
    }


def _side(ref: ImageRef, sources: Mapping[str, Source]) -> dict[str, Any]:
    return {
        "path": printable(ref.path),
        "label": printable(ref.label),
        "split": ref.split,
        "picture": thumbnail(sources[ref.split], ref.index),
    }


def _class_table(report: ScanReport) -> list[dict[str, Any]]:
    most = max((max(counts, default=0) for counts in report.counts.values()), default=0)
    return [
        {
            "name": printable(name),
            "counts": [counts[number] for counts in report.counts.values()],
            "shares": [100 * counts[number] / max(most, 1) for counts in report.counts.values()],
        }
        for number, name in enumerate(report.classes)
    ]


def _samples(report: ScanReport, splits: Mapping[str, Source]) -> list[dict[str, Any]]:
    """Choose a few images of each class, spread evenly over its list, from the first split."""
    split, source = next(iter(splits.items()))
    bad = set(report.bad[split])
    if not source.is_labelled:
        good = [index for index in range(len(source)) if index not in bad]
        return [{"name": "", "pictures": _pictures(source, _spread(good, 4 * MOST_SAMPLES_A_CLASS))}]
    first = source.labels[:, 0] if source.is_multi_label else source.labels
    each = max(1, min(MOST_SAMPLES_A_CLASS, MOST_SAMPLES // max(len(source.classes), 1)))
    rows = []
    for number, name in track(list(enumerate(source.classes))[:MOST_SAMPLES], "Drawing samples"):
        good = [int(index) for index in np.flatnonzero(first == number) if int(index) not in bad]
        rows.append({"name": printable(name), "pictures": _pictures(source, _spread(good, each))})
    return rows


def _spread(indices: Sequence[int], count: int) -> list[int]:
    if len(indices) <= count:
        return list(indices)
    return [indices[round(place)] for place in np.linspace(0, len(indices) - 1, count)]


def _pictures(source: Source, indices: Iterable[int]) -> list[dict[str, Any]]:
    return [{"path": printable(source.name(index)), "picture": thumbnail(source, index)} for index in indices]
