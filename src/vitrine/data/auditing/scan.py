"""Look at every file of a data set before it is trained on, and say what is wrong with it.

`vitrine check` shows the report; training runs the same scan and sets aside what cannot be decoded.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.data.auditing.duplicates import Duplicate, find_duplicates
from vitrine.data.auditing.fingerprints import content_hash
from vitrine.data.auditing.survey import ImageSurvey, survey_images
from vitrine.data.decoding.decode import ImageFacts
from vitrine.data.sources.file_list import FileList, passed_over
from vitrine.data.sources.shard_writing import verify_shards
from vitrine.data.sources.shards import LISTING
from vitrine.data.sources.source import ALL, Source, Subset
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import notice
from vitrine.spelling import counted, printable

# A class with fewer images than this in its first split is too small to hold any out and still learn from.
TINY_CLASS = 5
# All problems there are, the worst first.
PROBLEMS = (
    "empty file",
    "not an image",
    "damaged",
    "too large",
    "unreadable",
    "damaged shard",
    "empty class",
    "missing class",
    "single class",
    "leak",
    "conflicting labels",
    "exact duplicate",
    "near duplicate",
    "tiny class",
)
# Words of the decoder's and the sources' sentences, and what we call it.
_WORDS = {
    "is empty (0 bytes)": "empty file",
    "is not an image": "not an image",
    "is a damaged": "damaged",
    "more than the limit": "too large",
    "is too large": "too large",
}


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong: where, which of `PROBLEMS`, and in which way."""

    path: str
    problem: str
    detail: str

    def __post_init__(self) -> None:
        assert self.problem in PROBLEMS


@dataclass(frozen=True, kw_only=True)
class ScanReport:
    """What is in a data set and what is wrong with it."""

    address: str
    classes: tuple[str, ...]
    counts: dict[str, tuple[int, ...]]  # by split, in the order of classes
    num_images: int
    formats: dict[str, int]
    modes: dict[str, int]
    converted: dict[str, int]  # what decoding does to images of unusual kinds, and to how many
    smallest: tuple[int, int]  # height and width, by area
    median: tuple[int, int]
    largest: tuple[int, int]
    passed_over: dict[str, int]  # files that are not taken for images, by the ending of their names
    bad: dict[str, tuple[int, ...]]  # by split, numbers of the images that cannot be decoded
    duplicates: tuple[Duplicate, ...]
    issues: tuple[Issue, ...]
    contents: dict[str, str]  # by split, a hash of the bytes of all its images

    @property
    def num_bad(self) -> int:
        """Number of files that cannot be decoded."""
        return sum(len(indices) for indices in self.bad.values())

    @property
    def problems(self) -> dict[str, int]:
        """How often each problem occurs, the worst problem first."""
        count = Counter(issue.problem for issue in self.issues)
        return {problem: count[problem] for problem in PROBLEMS if count[problem]}


def scan(
    splits: Mapping[str, Source], *, num_workers: int = 0, is_cached: bool = True, is_near: bool = True
) -> ScanReport:
    """Read every image of all splits once and report; an unchanged set is recalled from the cache.

    `is_near=False` leaves out the search for near duplicates, whose time grows with the square of the set.
    """
    readings = {
        split: survey_images(source, num_workers=num_workers, is_cached=is_cached, what=f"Reading {split}")
        for split, source in splits.items()
    }
    duplicates = find_duplicates(splits, readings, is_near=is_near)
    first = next(iter(splits.values()))
    issues = [
        *_file_issues(splits, readings),
        *_shard_issues(first.root),
        *_class_issues(splits),
        *_copy_issues(duplicates),
    ]
    facts = Counter[ImageFacts]()
    for reading in readings.values():
        for kind, count in enumerate(np.bincount(reading.kind_of[reading.kind_of >= 0])):
            facts[reading.kinds[kind]] += int(count)
    sizes = np.concatenate([reading.sizes[reading.kind_of >= 0] for reading in readings.values()])
    return ScanReport(
        address=first.address,
        classes=first.classes,
        counts={split: tuple(source.counts().tolist()) for split, source in splits.items()},
        num_images=sum(len(source) for source in splits.values()),
        formats=_tally(facts, lambda kind: kind.format),
        modes=_tally(facts, lambda kind: kind.mode),
        converted=_conversions(facts),
        **_size_range(sizes),
        passed_over=_passed_over(first),
        bad={split: tuple(sorted(reading.reasons)) for split, reading in readings.items()},
        duplicates=duplicates,
        issues=tuple(sorted(issues, key=lambda issue: PROBLEMS.index(issue.problem))),
        contents={split: content_hash(reading.hashes).hex() for split, reading in readings.items()},
    )


def set_aside(splits: Mapping[str, Source], report: ScanReport) -> dict[str, Source]:
    """Leave out the images that cannot be decoded, and say how many."""
    kept: dict[str, Source] = {}
    for split, source in splits.items():
        bad = report.bad.get(split, ())
        kept[split] = Subset(source, np.delete(np.arange(len(source)), bad)) if bad else source
    if report.num_bad:
        kinds = [
            f"{count} {problem}" for problem, count in report.problems.items() if problem in PROBLEMS[:5]
        ]
        notice(f"Set aside {report.num_bad} of {report.num_images:,} files: {', '.join(kinds)}")
    return kept


def conversions_in_words(converted: Mapping[str, int]) -> str:
    """Say what decoding does to images of unusual kinds."""
    return "Converted when decoded: " + "; ".join(f"{words}: {count:,}" for words, count in converted.items())


def write_issues(issues: tuple[Issue, ...], path: Path) -> None:
    """Write `path,problem,detail`, one row an issue."""
    with write_atomically(path, mode="w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", "problem", "detail"])
        writer.writerows([printable(issue.path), issue.problem, issue.detail] for issue in issues)


def problem_of(reason: str) -> str:
    """Name the problem that a decoder's or a source's sentence speaks of."""
    return next((problem for words, problem in _WORDS.items() if words in reason), "unreadable")


def _file_issues(splits: Mapping[str, Source], readings: Mapping[str, ImageSurvey]) -> Iterator[Issue]:
    for split, reading in readings.items():
        for index, reason in sorted(reading.reasons.items()):
            name = splits[split].name(index)
            yield Issue(name, problem_of(reason), reason.removeprefix(printable(name)).strip())


def _shard_issues(root: Path | None) -> Iterator[Issue]:
    if root is not None and (root / LISTING).is_file():
        for found in verify_shards(root):
            yield Issue(found.path, "damaged shard", f"{found.problem}: {found.detail}")


def _class_issues(splits: Mapping[str, Source]) -> Iterator[Issue]:
    counts = {split: source.counts() for split, source in splits.items()}
    first = next(iter(splits.values()))
    if len(first.classes) == 1 and not first.is_multi_label:
        alone = first.classes[0]
        yield Issue(
            alone, "single class", f"all images are of {printable(alone)}: there is nothing to tell apart"
        )
    for number, name in enumerate(first.classes):
        held = {split: int(count[number]) for split, count in counts.items()}
        words = ", ".join(f"{count} in {split}" for split, count in held.items())
        if not any(held.values()):
            yield Issue(name, "empty class", f"the class {printable(name)} has no images at all")
            continue
        for split, count in held.items():
            if count == 0:
                yield Issue(
                    f"{split}/{name}",
                    "missing class",
                    f"{split} has no images of {printable(name)} ({words})",
                )
        where, count = next(iter(held.items()))
        if 0 < count < TINY_CLASS:
            words = (
                f"{counted(count, 'image')}{'' if where == ALL else f' in {where}'}; fewer than {TINY_CLASS} "
                "are too few to learn from"
            )
            yield Issue(name, "tiny class", words)


def _copy_issues(duplicates: tuple[Duplicate, ...]) -> Iterator[Issue]:
    for pair in duplicates:
        other = printable(pair.first.path)
        how = "equal to" if pair.is_exact else f"nearly the same as ({pair.similarity:.3f})"
        if pair.is_leak:
            yield Issue(
                pair.second.path,
                "leak",
                f"{how} {other}, which is in {pair.first.split}, not {pair.second.split}",
            )
        if pair.has_conflict:
            yield Issue(
                pair.second.path,
                "conflicting labels",
                f"{how} {other}, which is {pair.first.label or 'unlabelled'}, "
                f"not {pair.second.label or 'unlabelled'}",
            )
        if not pair.is_leak and not pair.has_conflict:
            problem = "exact duplicate" if pair.is_exact else "near duplicate"
            yield Issue(pair.second.path, problem, f"{how} {other}")


def _passed_over(source: Source) -> dict[str, int]:
    if source.root is None or not source.root.is_dir() or not isinstance(source, FileList):
        return {}
    return passed_over(source.root)


def _conversions(facts: Counter[ImageFacts]) -> dict[str, int]:
    kinds: dict[str, Callable[[ImageFacts], bool]] = {
        "turned upright by EXIF": lambda kind: kind.orientation != 1,
        "16-bit or deeper, scaled to 8 bits": lambda kind: kind.bits > 8,
        "alpha laid over white": lambda kind: kind.has_alpha,
        "CMYK made RGB": lambda kind: kind.mode == "CMYK",
        "palette made RGB": lambda kind: kind.mode in ("P", "PA"),
        "grey repeated as RGB": lambda kind: kind.mode in ("1", "L", "LA") or kind.mode.startswith("I;16"),
        "animated, first frame taken": lambda kind: kind.num_frames > 1,
    }
    counts = {words: sum(n for kind, n in facts.items() if holds(kind)) for words, holds in kinds.items()}
    return {words: count for words, count in counts.items() if count}


def _tally(facts: Counter[ImageFacts], key: Callable[[ImageFacts], str]) -> dict[str, int]:
    tally = Counter[str]()
    for kind, count in facts.items():
        tally[key(kind)] += count
    return dict(tally.most_common())


def _size_range(sizes: np.ndarray) -> dict[str, tuple[int, int]]:
    if len(sizes) == 0:
        return dict.fromkeys(("smallest", "median", "largest"), (0, 0))
    order = np.argsort(sizes[:, 0].astype(np.int64) * sizes[:, 1], kind="stable")
    places = {"smallest": 0, "median": len(order) // 2, "largest": len(order) - 1}
    return {name: (int(sizes[order[at], 0]), int(sizes[order[at], 1])) for name, at in places.items()}
