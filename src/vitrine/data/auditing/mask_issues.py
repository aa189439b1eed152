"""Problems of masks: unreadable ones, values without a class, sizes that differ, classes that never occur."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.data.auditing.issues import Issue
from vitrine.data.auditing.survey import ImageSurvey
from vitrine.data.decoding.annotation import IGNORED
from vitrine.data.sources.source import Source
from vitrine.errors import VitrineError
from vitrine.runtime.progress import track
from vitrine.spelling import printable


@dataclass(frozen=True, kw_only=True)
class MaskSurvey:
    """The problems of a split's masks, and in how many pictures each class occurs (K,)."""

    issues: tuple[Issue, ...]
    bad: tuple[int, ...]
    """Pictures whose mask cannot be used."""
    counts: NDArray[np.int64]


def survey_masks(source: Source, survey: ImageSurvey, *, num_workers: int, what: str) -> MaskSurvey:
    """Read every mask of a split once."""
    K = len(source.classes)

    def read(index: int) -> tuple[NDArray[np.int64], Issue | None]:
        none, name = np.zeros(K, dtype=np.int64), source.name(index)
        try:
            annotation = source.annotation(index)
        except VitrineError as error:
            return none, Issue(name, "unreadable mask", str(error).removeprefix(printable(name)).strip())
        size = (int(survey.sizes[index, 0]), int(survey.sizes[index, 1]))
        if survey.kind_of[index] >= 0 and annotation.size != size:
            words = (
                f"is {size[0]} x {size[1]} pixels, and its mask {annotation.size[0]} x {annotation.size[1]}"
            )
            return none, Issue(name, "mask size", words)
        assert annotation.classes is not None
        present = np.bincount(annotation.classes.ravel(), minlength=IGNORED + 1)[:K] > 0
        if not present.any():
            return none, Issue(name, "empty mask", "has only ignored pixels: nothing can be learned from it")
        return present.astype(np.int64), None

    with ThreadPoolExecutor(max(num_workers, 1)) as pool:
        rows = list(track(pool.map(read, range(len(source))), what, total=len(source)))
    unusable = ("unreadable mask", "mask size")
    return MaskSurvey(
        issues=tuple(issue for _, issue in rows if issue is not None),
        bad=tuple(
            index for index, (_, issue) in enumerate(rows) if issue is not None and issue.problem in unusable
        ),
        counts=np.sum([present for present, _ in rows], axis=0, dtype=np.int64),
    )


def unseen_class_issues(splits: Mapping[str, Source], masks: Mapping[str, MaskSurvey]) -> Iterator[Issue]:
    """Report classes that no mask of the first split has, and those that only others lack."""
    first = next(iter(splits))
    for number, name in enumerate(splits[first].classes):
        for split, survey in masks.items():
            if survey.counts[number] == 0:
                problem = "empty class" if split == first else "missing class"
                yield Issue(name, problem, f"no mask of {split} has the class {printable(name)}")
