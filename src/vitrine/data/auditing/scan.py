"""Read every file of a data set before training, and report its problems.

`check` shows the report; training runs the same scan and skips images that cannot be decoded.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from vitrine.data.auditing.annotation_issues import (
    UNUSABLE,
    AnnotationSurvey,
    survey_annotations,
    unseen_class_issues,
)
from vitrine.data.auditing.duplicates import Duplicate, find_duplicates
from vitrine.data.auditing.fingerprints import content_hash
from vitrine.data.auditing.issues import (
    PROBLEMS,
    Issue,
    class_issues,
    copy_issues,
    file_issues,
    shape_issues,
    shard_issues,
    unused_issues,
)
from vitrine.data.auditing.survey import ImageSurvey, survey_images
from vitrine.data.auditing.unused_files import UnusedFiles, unused_files
from vitrine.data.decoding.image_file import ImageFacts
from vitrine.data.sources.source import Source, Subset
from vitrine.runtime.progress import notice


@dataclass(frozen=True, kw_only=True)
class ScanReport:
    """Contents and problems of a data set."""

    address: str
    classes: tuple[str, ...]
    counts: dict[str, tuple[int, ...]]  # by split, in the order of classes
    numbers: dict[str, tuple[float, float, float]]  # by split, lowest, mean and highest; empty for classes
    num_images: int
    formats: dict[str, int]
    modes: dict[str, int]
    converted: dict[str, int]  # conversions that decoding makes, and of how many images
    smallest: tuple[int, int]  # height and width, by area
    median: tuple[int, int]
    largest: tuple[int, int]
    unused: UnusedFiles  # files in the folder of the set that are not part of it
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
    labelled = {
        split: survey_annotations(
            source, surveys[split], num_workers=num_workers, what=f"Reading {source.task} of {split}"
        )
        for split, source in splits.items()
        if source.task != "classes"
    }
    duplicates = find_duplicates(splits, surveys, is_near=is_near)
    first, unused = next(iter(splits.values())), unused_files(splits)
    facts = _facts_of(surveys)
    sizes = np.concatenate([survey.sizes[survey.kind_of >= 0] for survey in surveys.values()])
    return ScanReport(
        address=first.address,
        classes=first.classes,
        counts={
            split: tuple((labelled[split].counts if split in labelled else source.counts()).tolist())
            for split, source in splits.items()
        },
        numbers=_number_ranges(splits),
        num_images=sum(len(source) for source in splits.values()),
        formats=_tally(facts, lambda kind: kind.format),
        modes=_tally(facts, lambda kind: kind.mode),
        converted=_conversions(facts),
        **_size_range(sizes),
        unused=unused,
        bad={
            split: tuple(sorted({*survey.unreadable, *(labelled[split].bad if split in labelled else ())}))
            for split, survey in surveys.items()
        },
        duplicates=duplicates,
        issues=_issues_of(splits, surveys, labelled, duplicates=duplicates, unused=unused),
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
            f"{count} {problem}"
            for problem, count in report.problems.items()
            if problem in (*PROBLEMS[:5], *UNUSABLE)
        ]
        notice(f"Skipped {report.num_bad} of {report.num_images:,} files: {', '.join(kinds)}")
    return kept


def conversion_text(converted: Mapping[str, int]) -> str:
    """Describe the conversions that decoding makes."""
    return "Converted when decoded: " + "; ".join(f"{words}: {count:,}" for words, count in converted.items())


def _issues_of(
    splits: Mapping[str, Source],
    surveys: Mapping[str, ImageSurvey],
    labelled: Mapping[str, AnnotationSurvey],
    *,
    duplicates: tuple[Duplicate, ...],
    unused: UnusedFiles,
) -> tuple[Issue, ...]:
    """Collect all problems, the worst kind first."""
    root = next(iter(splits.values())).root
    issues = [
        *file_issues(splits, surveys),
        *unused_issues(unused),
        *shape_issues(splits, surveys),
        *shard_issues(root),
        *(issue for one in labelled.values() for issue in one.issues),
        *(unseen_class_issues(splits, labelled) if labelled else class_issues(splits)),
        *copy_issues(duplicates),
    ]
    return tuple(sorted(issues, key=lambda issue: PROBLEMS.index(issue.problem)))


def _number_ranges(splits: Mapping[str, Source]) -> dict[str, tuple[float, float, float]]:
    """Return the lowest, mean and highest number of each split that has numbers."""
    return {
        split: (float(source.values.min()), float(source.values.mean()), float(source.values.max()))
        for split, source in splits.items()
        if source.values is not None and len(source)
    }


def _facts_of(surveys: Mapping[str, ImageSurvey]) -> Counter[ImageFacts]:
    """Count the readable images of each kind."""
    facts = Counter[ImageFacts]()
    for survey in surveys.values():
        for kind, count in enumerate(np.bincount(survey.kind_of[survey.kind_of >= 0])):
            facts[survey.kinds[kind]] += int(count)
    return facts


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
