"""Read every file of a data set before training, and report its problems.

`check` shows the report; training runs the same scan and skips images that cannot be decoded.
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
from vitrine.data.decoding.image_file import ImageFacts
from vitrine.data.sources.file_list import FileList, skipped_extensions
from vitrine.data.sources.shard_writing import verify_shards
from vitrine.data.sources.shards import LISTING
from vitrine.data.sources.source import ALL, Source, Subset
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import notice
from vitrine.spelling import counted, printable

# A class with fewer images than this in its first split is too small to hold any out and still learn from it.
TINY_CLASS = 5
# An image whose sides differ by more than this factor is shown to a model mostly distorted or cropped away.
EXTREME_ASPECT = 20
# All problems, the worst first; the first five keep an image from being decoded.
PROBLEMS = (
    "empty file",
    "not an image",
    "damaged",
    "too large",
    "unreadable",
    "damaged shard",
    "extreme shape",
    "empty class",
    "missing class",
    "single class",
    "leak",
    "conflicting labels",
    "exact duplicate",
    "near duplicate",
    "tiny class",
)


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem: the path, which of `PROBLEMS`, and the details."""

    path: str
    problem: str
    detail: str

    def __post_init__(self) -> None:
        assert self.problem in PROBLEMS


@dataclass(frozen=True, kw_only=True)
class ScanReport:
    """Contents and problems of a data set."""

    address: str
    classes: tuple[str, ...]
    counts: dict[str, tuple[int, ...]]  # by split, in the order of classes
    num_images: int
    formats: dict[str, int]
    modes: dict[str, int]
    converted: dict[str, int]  # conversions that decoding makes, and of how many images
    smallest: tuple[int, int]  # height and width, by area
    median: tuple[int, int]
    largest: tuple[int, int]
    passed_over: dict[str, int]  # files without the extension of an image, by extension
    bad: dict[str, tuple[int, ...]]  # by split, indices of the images that cannot be decoded
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
    """Read every image of all splits once; the survey of an unchanged set is loaded from the cache.

    `is_near=False` skips the search for near-duplicates, whose time grows with the square of the set.
    """
    surveys = {
        split: survey_images(source, num_workers=num_workers, is_cached=is_cached, what=f"Reading {split}")
        for split, source in splits.items()
    }
    duplicates = find_duplicates(splits, surveys, is_near=is_near)
    first = next(iter(splits.values()))
    issues = [
        *_file_issues(splits, surveys),
        *_shape_issues(splits, surveys),
        *_shard_issues(first.root),
        *_class_issues(splits),
        *_copy_issues(duplicates),
    ]
    facts = Counter[ImageFacts]()
    for survey in surveys.values():
        for kind, count in enumerate(np.bincount(survey.kind_of[survey.kind_of >= 0])):
            facts[survey.kinds[kind]] += int(count)
    sizes = np.concatenate([survey.sizes[survey.kind_of >= 0] for survey in surveys.values()])
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
        bad={split: tuple(sorted(survey.unreadable)) for split, survey in surveys.items()},
        duplicates=duplicates,
        issues=tuple(sorted(issues, key=lambda issue: PROBLEMS.index(issue.problem))),
        contents={split: content_hash(survey.hashes).hex() for split, survey in surveys.items()},
    )


def skip_unreadable(splits: Mapping[str, Source], report: ScanReport) -> dict[str, Source]:
    """Return the splits without the images that cannot be decoded, and report how many were skipped."""
    kept: dict[str, Source] = {}
    for split, source in splits.items():
        bad = report.bad.get(split, ())
        kept[split] = Subset(source, np.delete(np.arange(len(source)), bad)) if bad else source
    if report.num_bad:
        kinds = [
            f"{count} {problem}" for problem, count in report.problems.items() if problem in PROBLEMS[:5]
        ]
        notice(f"Skipped {report.num_bad} of {report.num_images:,} files: {', '.join(kinds)}")
    return kept


def conversion_text(converted: Mapping[str, int]) -> str:
    """Describe the conversions that decoding makes."""
    return "Converted when decoded: " + "; ".join(f"{words}: {count:,}" for words, count in converted.items())


def write_issues(issues: tuple[Issue, ...], path: Path) -> None:
    """Write `path,problem,detail`, one row per issue."""
    with write_atomically(path, mode="w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["path", "problem", "detail"])
        writer.writerows([printable(issue.path), issue.problem, issue.detail] for issue in issues)


def _file_issues(splits: Mapping[str, Source], surveys: Mapping[str, ImageSurvey]) -> Iterator[Issue]:
    for split, survey in surveys.items():
        for index, failure in sorted(survey.unreadable.items()):
            name = splits[split].name(index)
            yield Issue(name, failure.problem, failure.detail.removeprefix(printable(name)).strip())


def _shape_issues(splits: Mapping[str, Source], surveys: Mapping[str, ImageSurvey]) -> Iterator[Issue]:
    for split, survey in surveys.items():
        longer, shorter = survey.sizes.max(axis=1, initial=0), survey.sizes.min(axis=1, initial=2**31 - 1)
        for index in np.flatnonzero((survey.kind_of >= 0) & (longer > EXTREME_ASPECT * shorter)):
            height, width = survey.sizes[index]
            yield Issue(
                splits[split].name(int(index)),
                "extreme shape",
                f"is {height} x {width} pixels (height x width): a model sees little of it, or all of it distorted",
            )


def _shard_issues(root: Path | None) -> Iterator[Issue]:
    if root is not None and (root / LISTING).is_file():
        for problem in verify_shards(root):
            yield Issue(problem.path, "damaged shard", f"{problem.problem}: {problem.detail}")


def _class_issues(splits: Mapping[str, Source]) -> Iterator[Issue]:
    counts = {split: source.counts() for split, source in splits.items()}
    first = next(iter(splits.values()))
    if len(first.classes) == 1 and not first.is_multi_label:
        alone = first.classes[0]
        yield Issue(
            alone,
            "single class",
            f"all images are of {printable(alone)}; a classifier needs two classes or more",
        )
    for number, name in enumerate(first.classes):
        held = {split: int(count[number]) for split, count in counts.items()}
        words = ", ".join(f"{count} in {split}" for split, count in held.items())
        if not any(held.values()):
            yield Issue(name, "empty class", f"the class {printable(name)} has no images")
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
        relation = "identical to" if pair.is_exact else f"a near-duplicate ({pair.similarity:.3f}) of"
        if pair.is_leak:
            yield Issue(
                pair.second.path,
                "leak",
                f"{relation} {other}, which is in {pair.first.split}, not {pair.second.split}",
            )
        if pair.has_conflict:
            yield Issue(
                pair.second.path,
                "conflicting labels",
                f"{relation} {other}, which is {pair.first.label or 'unlabelled'}, "
                f"not {pair.second.label or 'unlabelled'}",
            )
        if not pair.is_leak and not pair.has_conflict:
            problem = "exact duplicate" if pair.is_exact else "near duplicate"
            yield Issue(pair.second.path, problem, f"{relation} {other}")


def _passed_over(source: Source) -> dict[str, int]:
    if source.root is None or not source.root.is_dir() or not isinstance(source, FileList):
        return {}
    return skipped_extensions(source.root)


def _conversions(facts: Counter[ImageFacts]) -> dict[str, int]:
    kinds: dict[str, Callable[[ImageFacts], bool]] = {
        "rotated by EXIF orientation": lambda kind: kind.orientation != 1,
        "16-bit or deeper, scaled to 8 bits": lambda kind: kind.bits > 8,
        "alpha composited on white": lambda kind: kind.has_alpha,
        "CMYK converted to RGB": lambda kind: kind.mode == "CMYK",
        "palette converted to RGB": lambda kind: kind.mode in ("P", "PA"),
        "grey expanded to RGB": lambda kind: kind.mode in ("1", "L", "LA") or kind.mode.startswith("I;16"),
        "animated, first frame used": lambda kind: kind.num_frames > 1,
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
