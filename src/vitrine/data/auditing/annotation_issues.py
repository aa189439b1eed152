"""Problems of masks and boxes, and in how many pictures each class occurs."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.data.auditing.issues import Issue
from vitrine.data.auditing.survey import ImageSurvey
from vitrine.data.decoding.annotation import IGNORED, Annotation
from vitrine.data.decoding.mask_planes import mask_areas
from vitrine.data.sources.source import Source
from vitrine.errors import VitrineError
from vitrine.runtime.progress import track
from vitrine.spelling import printable

# Problems for which a picture is skipped.
UNUSABLE = ("unreadable mask", "mask size", "unreadable boxes", "box size")
# Pixels by which a box may extend beyond the border: tools round differently.
TOLERANCE = 1.0


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
    """Read the mask or the objects of every picture of a split once."""
    K = len(source.classes)
    problems_of = PROBLEMS_OF[source.task]

    def read(index: int) -> tuple[NDArray[np.int64], list[Issue]]:
        none, name = np.zeros(K, dtype=np.int64), source.name(index)
        try:
            annotation = source.annotation(index)
        except VitrineError as error:
            problem = "unreadable boxes" if source.task == "boxes" else "unreadable mask"
            return none, [Issue(name, problem, str(error).removeprefix(printable(name)).strip())]
        is_readable = survey.kind_of[index] >= 0
        size = (int(survey.sizes[index, 0]), int(survey.sizes[index, 1])) if is_readable else annotation.size
        present, problems = problems_of(annotation, size, num_classes=K)
        return present, [Issue(name, problem, detail) for problem, detail in problems]

    with ThreadPoolExecutor(max(num_workers, 1)) as pool:
        rows = list(track(pool.map(read, range(len(source))), what, total=len(source)))
    return AnnotationSurvey(
        issues=tuple(issue for _, issues in rows for issue in issues),
        bad=tuple(
            index
            for index, (_, issues) in enumerate(rows)
            if any(issue.problem in UNUSABLE for issue in issues)
        ),
        counts=np.sum([present for present, _ in rows], axis=0, dtype=np.int64),
    )


def unseen_class_issues(
    splits: Mapping[str, Source], surveys: Mapping[str, AnnotationSurvey]
) -> Iterator[Issue]:
    """Report classes that do not occur in the first split, and those that are missing only in another split."""
    first = next(iter(splits))
    for number, name in enumerate(splits[first].classes):
        for split, survey in surveys.items():
            if survey.counts[number] == 0:
                problem = "empty class" if split == first else "missing class"
                what = "box" if splits[split].task == "boxes" else "mask"
                yield Issue(name, problem, f"no {what} of {split} has the class {printable(name)}")


def box_problems(
    annotation: Annotation, size: tuple[int, int], *, num_classes: int
) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """Return which classes have boxes in a picture (K,), and problems with details; `size` is the picture's."""
    present = np.zeros(num_classes, dtype=np.int64)
    if annotation.size != size:
        words = (
            f"is {size[0]} x {size[1]} pixels, and its labels say {annotation.size[0]} x {annotation.size[1]}"
        )
        return present, [("box size", words)]
    boxes, problems = annotation.boxes, list[tuple[str, str]]()
    limits = np.array([size[1], size[0]] * 2, dtype=np.float32)
    inside = np.clip(boxes, 0, limits)
    is_empty = ((inside[:, 2:] - inside[:, :2]) <= 0).any(axis=1)
    is_outside = ~is_empty & (np.abs(boxes - inside) > TOLERANCE).any(axis=1)
    for is_one, problem, words in (
        (is_empty, "empty box", "has no area inside the picture"),
        (is_outside, "box outside", "reaches over the border"),
    ):
        if is_one.any():
            first = int(np.flatnonzero(is_one)[0])
            shown = ", ".join(f"{side:g}" for side in boxes[first].tolist())
            problems.append(
                (
                    problem,
                    f"{boxes_text(int(is_one.sum()))}: the first, {shown} (left, top, right, bottom), {words}",
                )
            )
    present[annotation.labels[~is_empty]] = 1
    rows = np.concatenate([boxes, annotation.labels[:, None]], axis=1)
    num_repeated = len(rows) - len(np.unique(rows, axis=0))
    if num_repeated:
        problems.append(("repeated box", f"has {boxes_text(num_repeated)} twice, with the same class"))
    return present, problems


def instance_problems(
    annotation: Annotation, size: tuple[int, int], *, num_classes: int
) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """Return which classes have masks of objects in a picture (K,), and problems of boxes and of masks."""
    assert annotation.planes is not None
    present, problems = box_problems(annotation, size, num_classes=num_classes)
    if annotation.size != size:
        return present, problems
    areas = mask_areas(annotation.planes, len(annotation.labels))
    # A box without an area is reported above.
    is_empty = (areas == 0) & (np.ptp(annotation.boxes.reshape(-1, 2, 2), axis=1) > 0).all(axis=1)
    if is_empty.any():
        count = "1 outline" if is_empty.sum() == 1 else f"{int(is_empty.sum()):,} outlines"
        problems.append(("empty outline", f"has {count} without a pixel inside the picture"))
    present[:] = 0
    present[annotation.labels[areas > 0]] = 1
    return present, problems


def boxes_text(count: int) -> str:
    """Return `1 box`, `2 boxes`."""
    return "1 box" if count == 1 else f"{count:,} boxes"


def mask_problems(
    annotation: Annotation, size: tuple[int, int], *, num_classes: int
) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """Return which classes are in a mask (K,), and its problems with details; `size` is the picture's."""
    if annotation.size != size:
        words = f"is {size[0]} x {size[1]} pixels, and its mask {annotation.size[0]} x {annotation.size[1]}"
        return np.zeros(num_classes, dtype=np.int64), [("mask size", words)]
    assert annotation.classes is not None
    present = np.bincount(annotation.classes.ravel(), minlength=IGNORED + 1)[:num_classes] > 0
    if not present.any():
        return present.astype(np.int64), [
            ("empty mask", "has only ignored pixels: nothing can be learned from it")
        ]
    return present.astype(np.int64), []


PROBLEMS_OF = {"masks": mask_problems, "boxes": box_problems, "instances": instance_problems}
