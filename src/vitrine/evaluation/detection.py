"""COCO's average precision of boxes: the twelve numbers of its own evaluation (cocoeval).

Per class and size, detections are matched with truths by IoU, best scores first; crowds and truths of other sizes
count neither as found nor as missed. Shapes: D detections and G truths of one picture and class, A ranges of areas,
T thresholds of IoU, R points of recall, M limits of detections per picture, K classes. Boxes are (left, top, width,
height).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
MOST_DETECTIONS = (1, 10, 100)
# Squares of 32 and 96 pixels divide small, medium and large objects; a truth on a border belongs to both.
AREAS = ((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10))
NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
# Just below 1, so that a threshold of 1 can be reached.
HIGHEST = 1 - 1e-10


@dataclass(frozen=True, kw_only=True)
class Truths:
    """The objects of one class in one picture."""

    boxes: Numbers
    """(G, 4)."""
    areas: Numbers
    """(G,); of the object, which may be smaller than its box."""
    is_crowd: Flags
    """(G,); a crowd may be found many times, and need not be."""


@dataclass(frozen=True, kw_only=True)
class Detections:
    """The detections of one class in one picture."""

    boxes: Numbers
    """(D, 4)."""
    scores: Numbers
    """(D,)."""
    areas: Numbers | None = None
    """(D,); None is that of the boxes."""
    overlaps: Numbers | None = None
    """Overlap with each truth of the picture (D, G), of masks; None is that of the boxes."""


@dataclass(frozen=True, kw_only=True)
class BoxScore:
    """The twelve numbers, and the average precision of each class."""

    numbers: Mapping[str, float]
    """By name, from `AP` to `ARl`; -1 where there is no truth."""
    per_class: Mapping[str, float]
    """AP at all thresholds; classes without truths are missing."""
    num_images: int
    num_truths: int
    num_detections: int


@dataclass(frozen=True)
class _Matches:
    """The matches of one picture and class: scores (D,), found and ignored (A, T, D), truths that count (A,)."""

    scores: Numbers
    is_matched: Flags
    is_ignored: Flags
    num_truths: NDArray[np.int64]


def score_boxes(
    pairs: Sequence[Mapping[int, tuple[Truths, Detections]]], *, classes: Sequence[str]
) -> BoxScore:
    """Score all pictures; each maps the number of a class to its truths and detections there."""
    of_class: list[list[_Matches]] = [[] for _ in classes]
    for picture in pairs:
        for number, (truths, detections) in picture.items():
            of_class[number].append(matches_of(truths, detections))
    A, T, R, M, K = len(AREAS), len(THRESHOLDS), len(RECALLS), len(MOST_DETECTIONS), len(classes)
    precision, recall = np.full((T, R, K, A, M), -1.0), np.full((T, K, A, M), -1.0)
    for number, matches in enumerate(of_class):
        for area in range(A):
            count = sum(int(one.num_truths[area]) for one in matches)
            if not count:
                continue
            for limit, most in enumerate(MOST_DETECTIONS):
                curves = curve_of(matches, area=area, most=most, num_truths=count)
                precision[:, :, number, area, limit], recall[:, number, area, limit] = curves
    averages = {name: mean_known(precision[:, :, number, 0, -1]) for number, name in enumerate(classes)}
    return BoxScore(
        numbers=dict(zip(NAMES, summary(precision, recall), strict=True)),
        per_class={name: value for name, value in averages.items() if value >= 0},
        num_images=len(pairs),
        num_truths=sum(len(truths.boxes) for one in pairs for truths, _ in one.values()),
        num_detections=sum(len(detections.boxes) for one in pairs for _, detections in one.values()),
    )


def matches_of(truths: Truths, detections: Detections) -> _Matches:
    """Match the detections of a picture, best first, with its truths, at every threshold and for every size."""
    order = np.argsort(-detections.scores, kind="stable")[: MOST_DETECTIONS[-1]]
    boxes, scores = detections.boxes[order], detections.scores[order]
    overlaps = ious(boxes, truths) if detections.overlaps is None else detections.overlaps[order]  # (D, G)
    low, high = (np.array(side)[:, None] for side in zip(*AREAS, strict=True))
    is_other = truths.is_crowd | (truths.areas < low) | (truths.areas > high)  # (A, G)
    A, T, (D, G) = len(AREAS), len(THRESHOLDS), overlaps.shape
    least = np.minimum(THRESHOLDS, HIGHEST)[:, None]  # (T, 1)
    is_taken = np.zeros((A, T, G), dtype=bool)
    is_matched, is_ignored = np.zeros((A, T, D), dtype=bool), np.zeros((A, T, D), dtype=bool)
    for place in range(D if G else 0):
        enough = (overlaps[place] >= least) & (~is_taken | truths.is_crowd)  # (A, T, G)
        # A truth that counts is preferred to one that does not, however much either overlaps.
        regular = enough & ~is_other[:, None]
        has_regular = regular.any(axis=2)
        wanted = np.where(has_regular[..., None], regular, enough)
        best = last_highest(np.where(wanted, overlaps[place], -1.0))  # (A, T)
        is_hit = wanted.any(axis=2)
        is_matched[:, :, place] = is_hit
        is_ignored[:, :, place] = is_hit & ~has_regular
        a, t = np.nonzero(is_hit)
        is_taken[a, t, best[a, t]] = True
    areas = boxes[:, 2] * boxes[:, 3] if detections.areas is None else detections.areas[order]
    is_outside = (areas < low) | (areas > high)  # (A, D)
    return _Matches(
        scores,
        is_matched,
        is_ignored | (~is_matched & is_outside[:, None]),
        (~is_other).sum(axis=1).astype(np.int64),
    )


def last_highest(values: Numbers) -> NDArray[np.int64]:
    """Return the place of the highest value along the last axis; of equal ones the last."""
    place: NDArray[np.int64] = values.shape[-1] - 1 - values[..., ::-1].argmax(axis=-1)
    return place


def ious(boxes: Numbers, truths: Truths) -> Numbers:
    """Return the overlap of boxes (D, 4) with truths (D, G): over their union, or over the box for a crowd."""
    left_top = np.maximum(boxes[:, None, :2], truths.boxes[None, :, :2])
    right_bottom = np.minimum(
        boxes[:, None, :2] + boxes[:, None, 2:], truths.boxes[None, :, :2] + truths.boxes[None, :, 2:]
    )
    sides = right_bottom - left_top
    both = np.where((sides > 0).all(axis=2), sides[..., 0] * sides[..., 1], 0.0)
    own, other = boxes[:, 2] * boxes[:, 3], truths.boxes[:, 2] * truths.boxes[:, 3]
    return shares_of_union(both, own, other, is_crowd=truths.is_crowd)


def mask_ious(masks: Flags, truths: Flags, *, is_crowd: Flags) -> Numbers:
    """Return the overlap of masks (D, H, W) with truths (G, H, W): over their union; for a crowd, over the mask."""
    pixels = masks.shape[1] * masks.shape[2]
    # Sums of ones are exact in fp32 up to 16 million pixels.
    own, others = (one.reshape(len(one), pixels).astype(np.float32) for one in (masks, truths))
    both = (own @ others.T).astype(np.float64)
    area, other = own.sum(axis=1, dtype=np.float64), others.sum(axis=1, dtype=np.float64)
    return shares_of_union(both, area, other, is_crowd=is_crowd)


def shares_of_union(both: Numbers, areas: Numbers, others: Numbers, *, is_crowd: Flags) -> Numbers:
    """Return common areas (D, G) over the union of both; for a crowd, over the area of the detection."""
    union = np.where(is_crowd, areas[:, None], areas[:, None] + others - both)
    result: Numbers = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return result


def curve_of(
    matches: Sequence[_Matches], *, area: int, most: int, num_truths: int
) -> tuple[Numbers, Numbers]:
    """Return the precision at each point of recall (T, R), and the highest recall (T,), of a class."""
    scores = np.concatenate([one.scores[:most] for one in matches])
    order = np.argsort(-scores, kind="stable")
    is_hit, ignored = (
        np.concatenate([flags[area][:, :most] for flags in all_flags], axis=1)[:, order]
        for all_flags in ([one.is_matched for one in matches], [one.is_ignored for one in matches])
    )
    right = np.cumsum(is_hit & ~ignored, axis=1).astype(float)
    wrong = np.cumsum(~is_hit & ~ignored, axis=1).astype(float)
    precision, recall = np.zeros((len(THRESHOLDS), len(RECALLS))), np.zeros(len(THRESHOLDS))
    if not len(scores):
        return precision, recall
    for t in range(len(THRESHOLDS)):
        reached = right[t] / num_truths
        exact = right[t] / (right[t] + wrong[t] + np.spacing(1))
        envelope = np.maximum.accumulate(exact[::-1])[::-1]  # non-increasing
        places = np.searchsorted(reached, RECALLS, side="left")
        is_reached = places < len(envelope)
        precision[t, is_reached] = envelope[places[is_reached]]
        recall[t] = reached[-1]
    return precision, recall


def summary(precision: Numbers, recall: Numbers) -> list[float]:
    """Return the twelve numbers from precision (T, R, K, A, M) and recall (T, K, A, M)."""
    return [
        mean_known(precision[:, :, :, 0, -1]),
        mean_known(precision[0, :, :, 0, -1]),
        mean_known(precision[5, :, :, 0, -1]),
        *(mean_known(precision[:, :, :, area, -1]) for area in (1, 2, 3)),
        *(mean_known(recall[:, :, 0, limit]) for limit in range(len(MOST_DETECTIONS))),
        *(mean_known(recall[:, :, area, -1]) for area in (1, 2, 3)),
    ]


def mean_known(values: Numbers) -> float:
    """Return the mean of the values that are known, or -1 where none is."""
    known = values[values > -1]
    return float(known.mean()) if known.size else -1.0
