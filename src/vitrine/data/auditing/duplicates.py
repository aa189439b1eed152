"""Copies within a data set: identical files, near-duplicates, copies with another label or in another split."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from vitrine.data.auditing.near_duplicates import near_pairs
from vitrine.data.auditing.survey import ImageSurvey
from vitrine.data.sources.source import Source
from vitrine.runtime.progress import notice

# Up to this many comparisons (times shifted views), shifted copies are searched for as well: a minute on two cores.
_MOST_SHIFTED_COMPARISONS = 20_000_000_000
_NUM_VIEWS = 9


@dataclass(frozen=True, slots=True)
class ImageRef:
    """One image of a set: its split, its number there, its path and the names of its labels."""

    split: str
    index: int
    path: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """Two images that are copies of each other; `similarity` is 1 for equal files."""

    first: ImageRef
    second: ImageRef
    is_exact: bool
    similarity: float

    @property
    def is_leak(self) -> bool:
        """Whether the two are in different splits."""
        return self.first.split != self.second.split

    @property
    def has_conflict(self) -> bool:
        """Whether the two have different labels."""
        return self.first.label != self.second.label


def find_duplicates(
    splits: Mapping[str, Source], surveys: Mapping[str, ImageSurvey], *, is_near: bool = True
) -> tuple[Duplicate, ...]:
    """Find identical files, then near-duplicates among the rest, within all splits and between them."""
    first_of: dict[bytes, tuple[str, int]] = {}
    copies: set[tuple[str, int]] = set()
    duplicates: list[Duplicate] = []
    for split, survey in surveys.items():
        for index, digest in enumerate(map(bytes, survey.hashes)):
            if index in survey.unreadable:
                continue
            original = first_of.setdefault(digest, (split, index))
            if original != (split, index):
                copies.add((split, index))
                duplicates.append(_duplicate(splits, original, (split, index), is_exact=True, similarity=1.0))
    if is_near:
        near = [
            _duplicate(splits, first, second, is_exact=False, similarity=similarity)
            for first, second, similarity in _near(surveys)
            if first not in copies and second not in copies
        ]
        duplicates += _without_implied(near)
    return tuple(duplicates)


def refer(source: Source, *, split: str, index: int) -> ImageRef:
    """Name example `index` of a source with its labels."""
    label = source.label(index)
    numbers = label if isinstance(label, tuple) else (label,)
    words = " ".join(source.classes[number] for number in numbers if number >= 0)
    return ImageRef(split, index, source.name(index), words)


def _near(surveys: Mapping[str, ImageSurvey]) -> Iterator[tuple[tuple[str, int], tuple[str, int], float]]:
    total = sum(len(survey) for survey in surveys.values())
    is_shifted = total * total // 2 * _NUM_VIEWS <= _MOST_SHIFTED_COMPARISONS
    if not is_shifted:
        notice(
            f"{total:,} images are too many to compare at several shifts: near-duplicates that were also shifted may "
            "be missed"
        )
    for split, survey in surveys.items():
        pairs = near_pairs(survey.thumbnails, colours=survey.colours, is_shifted=is_shifted)
        for query, other, similarity in zip(pairs.queries, pairs.others, pairs.similarity, strict=True):
            yield (split, int(query)), (split, int(other)), float(similarity)
    for (split, survey), (later, later_survey) in combinations(surveys.items(), 2):
        pairs = near_pairs(
            later_survey.thumbnails,
            survey.thumbnails,
            colours=later_survey.colours,
            base_colours=survey.colours,
            is_shifted=is_shifted,
        )
        for query, other, similarity in zip(pairs.queries, pairs.others, pairs.similarity, strict=True):
            yield (split, int(other)), (later, int(query)), float(similarity)


def _without_implied(pairs: list[Duplicate]) -> list[Duplicate]:
    """Drop pairs that follow from others: of ten photos of one series, the nine closest pairs are kept, not all 45.

    Leaks and conflicting labels are all kept: each is a mistake of its own.
    """
    leader: dict[ImageRef, ImageRef] = {}

    def group_of(image: ImageRef) -> ImageRef:
        while (above := leader.get(image, image)) != image:
            leader[image] = leader.get(above, above)  # path halving
            image = above
        return image

    kept: set[int] = set()
    for place in sorted(range(len(pairs)), key=lambda place: -pairs[place].similarity):
        pair = pairs[place]
        first, second = group_of(pair.first), group_of(pair.second)
        if pair.is_leak or pair.has_conflict:
            kept.add(place)
        elif first != second:
            kept.add(place)
            leader[second] = first
    return [pair for place, pair in enumerate(pairs) if place in kept]


def _duplicate(
    splits: Mapping[str, Source],
    first: tuple[str, int],
    second: tuple[str, int],
    *,
    is_exact: bool,
    similarity: float,
) -> Duplicate:
    return Duplicate(
        first=refer(splits[first[0]], split=first[0], index=first[1]),
        second=refer(splits[second[0]], split=second[0], index=second[1]),
        is_exact=is_exact,
        similarity=similarity,
    )
