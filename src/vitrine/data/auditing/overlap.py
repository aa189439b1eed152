"""Training images that are copies of test images, to be excluded as in the paper (section 4.1).

Pre-training data must not contain the test images of downstream tasks.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrine.data.auditing.duplicates import Duplicate, refer
from vitrine.data.auditing.near_duplicates import LEAST_FEATURE, Pairs, feature_pairs, near_pairs
from vitrine.data.auditing.survey import ImageSurvey, survey_images
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.runtime.files import write_table
from vitrine.spelling import near_match, printable

METHODS = ("hash", "perceptual", "features")
TRAIN = "train"
Features = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class OverlapPair:
    """A training image (`pair.first`), the test image that it copies, and the first method that found the pair."""

    pair: Duplicate
    method: str


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """All pairs between a training set and test sets; `pair.second.split` names the test set."""

    num_train: int
    num_test: dict[str, int]
    num_unreadable: int
    pairs: tuple[OverlapPair, ...]

    @property
    def excluded(self) -> tuple[str, ...]:
        """Paths of the training images to exclude, sorted, each once."""
        return tuple(sorted({one.pair.first.path for one in self.pairs}))

    @property
    def by_method(self) -> dict[str, int]:
        """Number of pairs that each method found and no earlier method did."""
        return {
            method: sum(one.method == method for one in self.pairs)
            for method in METHODS
            if any(one.method == method for one in self.pairs)
        }


def find_overlap(
    train: Source,
    tests: Mapping[str, Source],
    *,
    by: Collection[str] = ("hash", "perceptual"),
    features: Mapping[str, Features] | None = None,
    least_cosine: float = LEAST_FEATURE,
    is_mirrored: bool = False,
    num_workers: int = 0,
    is_cached: bool = True,
) -> Overlap:
    """Find the training images that are copies of an image of any test set.

    `features` contains (N, D) by the name of each test set and under "train"; the method "features" needs it. A pair
    that several methods find is listed once, under the first of `METHODS`.
    """
    check_methods(by, has_features=features is not None)
    own = survey_images(train, num_workers=num_workers, is_cached=is_cached, what="Reading the training set")
    num_unreadable = len(own.unreadable)
    found_pairs: list[OverlapPair] = []
    for name, test in tests.items():
        theirs = survey_images(test, num_workers=num_workers, is_cached=is_cached, what=f"Reading {name}")
        num_unreadable += len(theirs.unreadable)
        seen: set[tuple[int, int]] = set()
        for method in (method for method in METHODS if method in by):
            if method == "hash":
                pairs = equal_pairs(theirs, own)
            elif method == "perceptual":
                pairs = near_pairs(
                    theirs.thumbnails,
                    own.thumbnails,
                    colours=theirs.colours,
                    base_colours=own.colours,
                    is_mirrored=is_mirrored,
                )
            else:
                assert features is not None
                pairs = feature_pairs(features[name], features[TRAIN], least=least_cosine)
            found_pairs += _new_pairs(pairs, seen, train=train, test=test, test_name=name, method=method)
    return Overlap(
        num_train=len(train),
        num_test={name: len(test) for name, test in tests.items()},
        num_unreadable=num_unreadable,
        pairs=tuple(found_pairs),
    )


def equal_pairs(queries: ImageSurvey, base: ImageSurvey) -> Pairs:
    """Find all pairs of identical files."""
    places: dict[bytes, list[int]] = {}
    for index, digest in enumerate(map(bytes, base.hashes)):
        if index not in base.unreadable:
            places.setdefault(digest, []).append(index)
    pairs = [
        (query, other)
        for query, digest in enumerate(map(bytes, queries.hashes))
        for other in places.get(digest, ())
        if query not in queries.unreadable
    ]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Pairs(queries=both[:, 0], others=both[:, 1], similarity=np.ones(len(both), dtype=np.float32))


def write_pairs(overlap: Overlap, path: Path) -> None:
    """Write `train,test,test_set,method,similarity`, one row per pair."""
    with write_table(path) as writer:
        writer.writerow(["train", "test", "test_set", "method", "similarity"])
        for one in overlap.pairs:
            first, second = one.pair.first, one.pair.second
            row = [printable(first.path), printable(second.path), second.split, one.method]
            writer.writerow([*row, f"{one.pair.similarity:.4f}"])


def check_methods(by: Collection[str], *, has_features: bool) -> None:
    """Refuse methods that do not exist, and features without a model."""
    for method in by:
        if method not in METHODS:
            close = near_match(method, METHODS)
            hint = f"; did you mean {close}?" if close else ""
            raise ConfigError(
                f"there is no method {method!r}, only {', '.join(METHODS)}{hint}",
                suggestions=[close] if close else [],
            )
    if not by:
        raise ConfigError(f"no search method given; pass one or more of {', '.join(METHODS)}")
    if "features" in by and not has_features:
        raise ConfigError("the method features needs a model; pass one, or remove features")


def _new_pairs(
    pairs: Pairs, seen: set[tuple[int, int]], *, train: Source, test: Source, test_name: str, method: str
) -> list[OverlapPair]:
    found_pairs = []
    for query, other, similarity in zip(pairs.queries, pairs.others, pairs.similarity, strict=True):
        place = (int(query), int(other))
        if place in seen:
            continue
        seen.add(place)
        pair = Duplicate(
            first=refer(train, split=TRAIN, index=place[1]),
            second=refer(test, split=test_name, index=place[0]),
            is_exact=method == "hash",
            similarity=float(similarity),
        )
        found_pairs.append(OverlapPair(pair=pair, method=method))
    return found_pairs
