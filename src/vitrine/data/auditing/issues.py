"""Problems of a data set, by kind: what each is, where it is found, and what to do about it."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrine.data.auditing.duplicates import Duplicate
from vitrine.data.auditing.survey import ImageSurvey
from vitrine.data.auditing.unused_files import UnusedFiles
from vitrine.data.sources.shard_writing import verify_shards
from vitrine.data.sources.shards import LISTING
from vitrine.data.sources.source import ALL, Source
from vitrine.runtime.files import write_table
from vitrine.spelling import counted, printable

# A class with fewer images than this in its first split is too small to hold any out and still learn from it.
TINY_CLASS = 5
# An image with a side shorter than this has nothing to recognise: images of 1 x 1 pixels count visits of web pages.
TINY_SIDE = 8
# An image whose sides differ by more than this factor is shown to a model mostly distorted or cropped away.
EXTREME_ASPECT = 20
# Ratio of the largest class to the smallest from which classes count as uneven: a choice, not measured.
UNEVEN = 4
# All problems, the worst first; the first five keep an image from being decoded.
PROBLEMS = (
    "empty file",
    "not an image",
    "damaged",
    "too large",
    "unreadable",
    "damaged shard",
    "unreadable mask",
    "mask size",
    "empty mask",
    "unreadable boxes",
    "box size",
    "empty box",
    "empty outline",
    "box outside",
    "repeated box",
    "unlabelled image",
    "hidden image",
    "tiny image",
    "extreme shape",
    "empty class",
    "missing class",
    "single class",
    "leak",
    "conflicting labels",
    "exact duplicate",
    "near duplicate",
    "tiny class",
    "uneven classes",
)
# The advice for each problem.
REMEDIES = {
    "empty file": "Copy or download the file again, or delete it; training skips it.",
    "not an image": "Delete it, or save it as JPEG or PNG; training skips it.",
    "damaged": "Copy or download the file again; training skips it.",
    "too large": "Save a smaller version; training skips it.",
    "unreadable": "Check the permissions of the file, or where its link leads; training skips it.",
    "damaged shard": "Write the shards again.",
    "unreadable mask": "Save it again as PNG with the values of the class list; training skips the picture.",
    "mask size": "Resize the mask without smoothing (nearest neighbour); training skips the picture.",
    "empty mask": "Label it, or delete it.",
    "unreadable boxes": "Write the labels of the picture again; training skips it.",
    "box size": "Label the picture at the size that it has now; training skips it.",
    "empty box": "Draw the box again, or delete it; training does not use it.",
    "empty outline": "Draw the outline again, or delete it; training does not use it.",
    "box outside": "Outside parts are cut off. Many such boxes mean that labels and pictures do not match.",
    "repeated box": "Delete one of the two.",
    "unlabelled image": "Move it into the folder of its class, or add it to the table.",
    "hidden image": "Rename it without the dot at the start to use it.",
    "tiny image": "Delete it: there is nothing to recognise.",
    "extreme shape": "Crop it to the part that matters.",
    "empty class": "Add images, or delete the folder; training skips the class.",
    "missing class": "Add images of the class to this split; its score says nothing about the class.",
    "single class": "Add a folder with images of another class.",
    "leak": "Delete one of the two copies, or the score will be too optimistic.",
    "conflicting labels": "Decide which label is right, and delete the other copy.",
    "exact duplicate": "Nothing to do: copies stay in one split. Delete them to train a little faster.",
    "near duplicate": "Nothing to do, unless the split is your own: then keep copies on one side.",
    "tiny class": "Add images, or merge the class with a similar one.",
    "uneven classes": "Add images of the small classes, and read mean F1 instead of accuracy.",
}


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem: the path, which of `PROBLEMS`, and the details."""

    path: str
    problem: str
    detail: str

    def __post_init__(self) -> None:
        assert self.problem in PROBLEMS


def write_issues(issues: tuple[Issue, ...], path: Path) -> None:
    """Write `path,problem,detail`, one row per issue."""
    with write_table(path) as writer:
        writer.writerow(["path", "problem", "detail"])
        writer.writerows([printable(issue.path), issue.problem, issue.detail] for issue in issues)


def file_issues(splits: Mapping[str, Source], surveys: Mapping[str, ImageSurvey]) -> Iterator[Issue]:
    """Report the files that cannot be decoded."""
    for split, survey in surveys.items():
        for index, failure in sorted(survey.unreadable.items()):
            name = splits[split].name(index)
            yield Issue(name, failure.problem, failure.detail.removeprefix(printable(name)).strip())


def unused_issues(unused: UnusedFiles) -> Iterator[Issue]:
    """Report images in the folder that are not part of the set."""
    for name in unused.unlabelled:
        words = "outside the class folders, or missing in the table, so it has no label; move or list it"
        yield Issue(name, "unlabelled image", words)
    for name in unused.hidden_images:
        yield Issue(name, "hidden image", "its name begins with a dot, so it is skipped; rename it to use it")


def shape_issues(splits: Mapping[str, Source], surveys: Mapping[str, ImageSurvey]) -> Iterator[Issue]:
    """Report images that are too small or too long to show much."""
    for split, survey in surveys.items():
        longer, shorter = survey.sizes.max(axis=1, initial=0), survey.sizes.min(axis=1, initial=2**31 - 1)
        for index in np.flatnonzero((survey.kind_of >= 0) & (shorter < TINY_SIDE)):
            height, width = survey.sizes[index]
            words = f"is {height} x {width} pixels (height x width), too small to show anything; remove it"
            yield Issue(splits[split].name(int(index)), "tiny image", words)
        for index in np.flatnonzero((survey.kind_of >= 0) & (longer > EXTREME_ASPECT * shorter)):
            height, width = survey.sizes[index]
            yield Issue(
                splits[split].name(int(index)),
                "extreme shape",
                f"is {height} x {width} pixels (height x width): a model sees little of it, or all of it distorted",
            )


def shard_issues(root: Path | None) -> Iterator[Issue]:
    """Report shards that differ from their listing."""
    if root is not None and (root / LISTING).is_file():
        for problem in verify_shards(root):
            yield Issue(problem.path, "damaged shard", f"{problem.problem}: {problem.detail}")


def are_uneven(counts: Collection[int] | NDArray[np.int64]) -> bool:
    """Whether the largest class has many times as many images as the smallest that has any."""
    filled = [int(count) for count in counts if count]
    return bool(filled) and max(filled) >= UNEVEN * min(filled)


def class_issues(splits: Mapping[str, Source]) -> Iterator[Issue]:
    """Report classes that are alone, empty, missing in a split, small or uneven."""
    counts = {split: source.counts() for split, source in splits.items()}
    first = next(iter(splits.values()))
    if len(first.classes) == 1 and not first.is_multi_label and not first.is_numeric:
        alone = first.classes[0]
        yield Issue(
            alone,
            "single class",
            f"all images are of {printable(alone)}; a classifier needs two classes or more",
        )
    filled = first.counts()[first.counts() > 0]
    if len(filled) > 1 and not first.is_multi_label and are_uneven(filled):
        sizes = first.counts().tolist()
        most, least = (first.classes[sizes.index(size)] for size in (filled.max(), filled.min()))
        share = 100 * filled.max() / filled.sum()
        yield Issue(
            most,
            "uneven classes",
            f"{printable(most)} has {filled.max():,} images, {printable(least)} has {filled.min():,}: answering "
            f"{printable(most)} every time would be right for {share:.0f} %",
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


def copy_issues(duplicates: tuple[Duplicate, ...]) -> Iterator[Issue]:
    """Report copies: in two splits, with two labels, or in one split."""
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
