"""Where masks and boxes are wrong: the worst pictures, and which classes are taken for which.

Shapes: H x W pixels of a picture, D boxes that were found and G objects of a picture, K classes.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import Annotation, Map
from vitrine.errors import DataError
from vitrine.evaluation.detection import BoxScore, score_boxes
from vitrine.evaluation.objects import BoxPrediction, by_class, overlaps_of
from vitrine.evaluation.segmentation import PixelScore, confusion_of, total_of
from vitrine.runtime.progress import announced

MOST_WORST = 12
# Fewer labelled pixels than this say little about a picture.
LEAST_PIXELS = 100
# Boxes of at least this score count as answers, and are right from this overlap on.
SURE_SCORE, LEAST_OVERLAP = 0.3, 0.5

Mistake = tuple[int | None, int | None]
"""The true class and the predicted one: None for the box of no object, or for an object that was not found."""


@dataclass(frozen=True, kw_only=True)
class WorstMask:
    """A picture of which few pixels are classified correctly."""

    index: int
    truth: Map
    predicted: Map
    accuracy: float
    """Share of its labelled pixels that are predicted correctly."""


@dataclass(frozen=True, kw_only=True)
class WorstBoxes:
    """A picture with mistakes."""

    truth: Annotation
    prediction: BoxPrediction
    mistakes: tuple[Mistake, ...]


@dataclass(frozen=True, kw_only=True)
class BoxMistakes:
    """The score of a set, the pictures with most mistakes, and how often each mistake occurs."""

    score: BoxScore
    worst: tuple[WorstBoxes, ...]
    counts: tuple[tuple[Mistake, int], ...]
    """Most frequent first."""
    has_masks: bool = False
    """Whether masks were compared, not boxes."""


def score_masks(
    pairs: Iterable[tuple[int, Map, Map]], *, classes: tuple[str, ...], count: int
) -> tuple[PixelScore, tuple[WorstMask, ...]]:
    """Score (index, true, predicted) masks; return the score, and the pictures with the lowest accuracy."""
    each, worst = [], list[WorstMask]()
    with announced("Evaluating", total=count) as advance:
        for index, truth, predicted in pairs:
            counts = confusion_of(truth, predicted, num_classes=len(classes))
            each.append(counts)
            if counts.sum() >= LEAST_PIXELS:
                accuracy = float(counts[:, :-1].trace() / counts.sum())
                worst.append(WorstMask(index=index, truth=truth, predicted=predicted, accuracy=accuracy))
                worst = sorted(worst, key=lambda one: (one.accuracy, one.index))[:MOST_WORST]
            advance(1, "")
    score = PixelScore(
        classes=classes, confusion=total_of(each, num_classes=len(classes)), num_images=len(each)
    )
    return score, tuple(worst)


def score_found(
    predictions: Iterable[BoxPrediction],
    annotation_of: Callable[[int], Annotation],
    *,
    name_of: Callable[[int], str],
    classes: tuple[str, ...],
    numbers: NDArray[np.int64],
    count: int,
) -> BoxMistakes:
    """Score the boxes of pictures against their annotations; `numbers` are the model's of the data's classes."""
    pairs, worst, counts, has_masks = [], list[WorstBoxes](), Counter[Mistake](), False
    with announced("Evaluating", total=count) as advance:
        for prediction in predictions:
            if prediction.error is not None:
                raise DataError(f"cannot evaluate {name_of(prediction.index)}: {prediction.error}")
            truth = annotation_of(prediction.index)
            truth = replace(truth, labels=numbers[truth.labels])
            pairs.append(by_class(truth, prediction))
            has_masks = prediction.planes is not None
            mistakes = mistakes_in(truth, prediction)
            counts.update(mistakes)
            if mistakes:
                worst.append(WorstBoxes(truth=truth, prediction=prediction, mistakes=tuple(mistakes)))
                worst = sorted(worst, key=lambda one: (-len(one.mistakes), one.prediction.index))[:MOST_WORST]
            advance(1, "")
    return BoxMistakes(
        score=score_boxes(pairs, classes=classes), worst=tuple(worst), counts=tuple(counts.most_common()),
        has_masks=has_masks,
    )  # fmt: skip


def mistakes_in(truth: Annotation, prediction: BoxPrediction) -> list[Mistake]:
    """Compare the sure boxes of a picture, best first, with its objects: each object is found at most once.

    A box that is left over is taken for the object that it covers best, of whatever class; objects that need not be
    found are not mistakes.
    """
    sure = prediction.first(int((prediction.scores >= SURE_SCORE).sum()))
    labels, overlaps = sure.labels, overlaps_of(truth, sure)  # (D, G)
    is_free = np.ones(len(truth.boxes), dtype=bool)
    left_over: list[int] = []
    for place, label in enumerate(labels.tolist()):
        candidates = np.where(is_free & (truth.labels == label), overlaps[place], 0.0)
        if candidates.size and candidates.max() >= LEAST_OVERLAP:
            best = int(candidates.argmax())
            is_free[best] = truth.is_ignored[best]  # an ignored object may be found again
        else:
            left_over.append(place)
    mistakes: list[Mistake] = []
    for place in left_over:
        candidates = np.where(is_free, overlaps[place], 0.0)
        best = int(candidates.argmax()) if candidates.size else -1
        if best < 0 or candidates[best] < LEAST_OVERLAP:
            mistakes.append((None, int(labels[place])))
        elif not truth.is_ignored[best]:
            mistakes.append((int(truth.labels[best]), int(labels[place])))
            is_free[best] = False
    missed = truth.labels[is_free & ~truth.is_ignored]
    return [*mistakes, *((int(label), None) for label in missed.tolist())]
