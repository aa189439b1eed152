"""Images that belong together: of one patient, one camera, one burst. A split keeps them on one side.

A group is named by a column of the manifest, by a regular expression for the name of the file, or by `burst` (photos
taken within seconds of each other, by their EXIF time).
"""

import datetime
import io
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from vitrine.data.sources import manifest
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.spelling import near_match, printable

Indices = NDArray[np.int64]

BURST = "burst"
# Photos are of one burst if one was taken at most this long after another.
BURST_SECONDS = 10.0
# The part of a name before its last number: of `patient7_003.png`, `patient7`.
STEM = r"^(.*?)[-_ .]?\d+\.\w+$"
# Files whose EXIF is read to notice bursts.
MOST_READ = 400
# Groups are likely where their names cover most images, and they are neither one image nor the whole class.
LEAST_COVERED, LEAST_PER_GROUP, LEAST_BURST_SHARE = 0.8, 3, 0.3


def group_images(source: Source, by: str) -> Indices:
    """Return for each image the first image of its group (N,): by a column, a regular expression, or `burst`."""
    columns = manifest.columns_of(source.address)
    if by in columns:
        names = manifest.column(source.address, by)
        return merged([_equal(names.get(source.name(row)) or None for row in range(len(source)))])
    if by == BURST:
        return merged([burst_groups(source, range(len(source)))])
    return merged([_equal(_matches(source, by, columns=columns))])


def merged(groupings: Iterable[Indices]) -> Indices:
    """Join groups that share an image: for each image the first one of its group (N,)."""
    first: Indices | None = None
    for grouping in groupings:
        if first is None:
            first = grouping.copy()
            continue
        for row, other in enumerate(grouping):
            one, two = _leader(first, row), _leader(first, int(other))
            first[max(one, two)] = min(one, two)
    assert first is not None
    return np.array([_leader(first, row) for row in range(len(first))], dtype=np.int64)


def joined_pairs(count: int, pairs: Iterable[tuple[int, int]]) -> Indices:
    """Turn pairs of images into groups of `count` images."""
    first = np.arange(count, dtype=np.int64)
    for one, other in pairs:
        leaders = sorted((_leader(first, one), _leader(first, other)))
        first[leaders[1]] = leaders[0]
    return np.array([_leader(first, row) for row in range(count)], dtype=np.int64)


def likely_grouping(source: Source) -> tuple[str, str] | None:
    """Return how the images seem to be grouped (a value for `group`), and the evidence; None if they do not."""
    if source.is_multi_label or not source.is_labelled or source.path(0) is None:
        return None
    names = [Path(source.name(row)).name for row in range(len(source))]
    stems = [match.group(1) if (match := re.match(STEM, name)) else None for name in names]
    per_class: dict[int, dict[str, int]] = {}
    for label, stem in zip(source.labels.tolist(), stems, strict=True):
        if stem:
            counts = per_class.setdefault(label, {})
            counts[stem] = counts.get(stem, 0) + 1
    covered = sum(sum(counts.values()) for counts in per_class.values())
    num_groups = sum(len(counts) for counts in per_class.values())
    # One stem per class is its name, as in beagle_12.jpg.
    if covered >= LEAST_COVERED * len(names) and num_groups > 2 * len(per_class):
        if covered >= LEAST_PER_GROUP * num_groups:
            example = max((count, stem) for counts in per_class.values() for stem, count in counts.items())
            return STEM, f"names such as {printable(example[1])}... are shared by up to {example[0]:,} images"
        return None
    rows = range(min(len(source), MOST_READ))  # neighbours in the list, as a burst is
    sizes = np.bincount(burst_groups(source, rows)[: len(rows)], minlength=len(source))
    in_bursts = int(sizes[sizes > 1].sum())
    if in_bursts >= LEAST_BURST_SHARE * len(rows):
        return (
            BURST,
            f"{in_bursts:,} of {len(rows):,} photos were taken within {BURST_SECONDS:.0f} s of another",
        )
    return None


def burst_groups(source: Source, rows: Iterable[int]) -> Indices:
    """Group photos that were taken within seconds of each other (N,); rows that are not read are alone."""
    times = [(time, row) for row in rows if (time := taken_at(source, row)) is not None]
    times.sort()
    pairs = [
        (one[1], other[1]) for one, other in itertools.pairwise(times) if other[0] - one[0] <= BURST_SECONDS
    ]
    return joined_pairs(len(source), pairs)


def taken_at(source: Source, row: int) -> float | None:
    """Return when a photo was taken, in seconds, by its EXIF; None where it does not say."""
    try:
        data = source.read(row).data
        if not isinstance(data, bytes):
            return None
        with Image.open(io.BytesIO(data)) as image:
            details = image.getexif().get_ifd(ExifTags.IFD.Exif)
        taken = details.get(ExifTags.Base.DateTimeOriginal)
        return (
            None if taken is None else datetime.datetime.strptime(str(taken), "%Y:%m:%d %H:%M:%S").timestamp()
        )
    except (DataError, OSError, ValueError, SyntaxError, UnidentifiedImageError):
        return None  # a damaged file or time: `check` reports files that cannot be read


def _matches(source: Source, by: str, *, columns: tuple[str, ...]) -> Iterable[str | None]:
    try:
        pattern = re.compile(by)
    except re.error as error:
        raise ConfigError(f"{by!r} is not a regular expression: {error}", option="group") from None
    matches = [pattern.search(source.name(row)) for row in range(len(source))]
    if not any(matches):
        close = near_match(by, columns)
        hint = f"; did you mean the column {close}?" if close else ""
        known = f"neither a column ({', '.join(columns)}) nor" if columns else "no"
        raise ConfigError(
            f"{by!r} is {known} expression that matches a name such as {printable(source.name(0))}{hint}",
            option="group",
            suggestions=[close] if close else [],
        )
    return [None if one is None else one.group(1) if pattern.groups else one.group(0) for one in matches]


def _equal(names: Iterable[str | None]) -> Indices:
    """Group equal names; an image without one is alone."""
    first: dict[str, int] = {}
    return np.array(
        [row if name is None else first.setdefault(name, row) for row, name in enumerate(names)],
        dtype=np.int64,
    )


def _leader(first: Indices, row: int) -> int:
    while first[row] != row:
        first[row] = first[first[row]]  # path halving
        row = int(first[row])
    return row
