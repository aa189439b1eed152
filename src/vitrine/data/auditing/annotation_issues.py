"""Problems of masks and boxes, and in how many pictures each class occurs."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.data.auditing.box_issues import box_problems
from vitrine.data.auditing.issues import Issue
from vitrine.data.auditing.mask_issues import mask_problems
from vitrine.data.auditing.survey import ImageSurvey
from vitrine.data.sources.source import Source
from vitrine.errors import VitrineError
from vitrine.runtime.progress import track
from vitrine.spelling import printable

# Problems for which a picture is skipped.
UNUSABLE = ("unreadable mask", "mask size", "unreadable boxes", "box size")


@dataclass(frozen=True, kw_only=True)
class AnnotationSurvey:
    """The problems of a split's masks or boxes, and in how many pictures each class occurs (K,)."""

    issues: tuple[Issue, ...]
    bad: tuple[int, ...]
    """Pictures whose mask or boxes cannot be used."""
    counts: NDArray[np.int64]


def survey_annotations(
    source: Source, survey: ImageSurvey, *, num_workers: int, what: str
) -> AnnotationSurvey:
    """Read the mask or the boxes of every picture of a split once."""
    K = len(source.classes)
    problems_of = mask_problems if source.task == "masks" else box_problems

    def read(index: int) -> tuple[NDArray[np.int64], list[Issue]]:
        none, name = np.zeros(K, dtype=np.int64), source.name(index)
        try:
            annotation = source.annotation(index)
        except VitrineError as error:
            problem = "unreadable mask" if source.task == "masks" else "unreadable boxes"
            return none, [Issue(name, problem, str(error).removeprefix(printable(name)).strip())]
        is_readable = survey.kind_of[index] >= 0
        size = (int(survey.sizes[index, 0]), int(survey.sizes[index, 1])) if is_readable else annotation.size
        present, found = problems_of(annotation, size, num_classes=K)
        return present, [Issue(name, problem, detail) for problem, detail in found]

    with ThreadPoolExecutor(max(num_workers, 1)) as pool:
        rows = list(track(pool.map(read, range(len(source))), what, total=len(source)))
    return AnnotationSurvey(
        issues=tuple(issue for _, found in rows for issue in found),
        bad=tuple(
            index for index, (_, found) in enumerate(rows) if any(one.problem in UNUSABLE for one in found)
        ),
        counts=np.sum([present for present, _ in rows], axis=0, dtype=np.int64),
    )


def unseen_class_issues(
    splits: Mapping[str, Source], surveys: Mapping[str, AnnotationSurvey]
) -> Iterator[Issue]:
    """Report classes that no picture of the first split has, and those that only others lack."""
    first = next(iter(splits))
    for number, name in enumerate(splits[first].classes):
        for split, survey in surveys.items():
            if survey.counts[number] == 0:
                problem = "empty class" if split == first else "missing class"
                what = "mask" if splits[split].task == "masks" else "box"
                yield Issue(name, problem, f"no {what} of {split} has the class {printable(name)}")
