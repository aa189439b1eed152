"""The ObjectNet protocol of the paper's appendix D.9: that of BiT (Kolesnikov et al., arXiv:1912.11370, section 3.6).

A model with ImageNet's 1,000 classes is tested, as it is, on the pictures of the 113 objects that overlap with
ImageNet. An answer is correct if it is one of the object's ImageNet classes (nine objects have two or three); top-5
accuracy asks whether any of them is among the five most likely of all 1,000 classes. Accuracy is over pictures.

BiT names no code: it follows "the literature", ObjectNet's own paper and Borji's (arXiv:2004.02042). The code of
ObjectNet's authors (abarbu/objectnet-template-pytorch, `objectnet_eval.py`) takes the five most likely of all classes
and then translates them into objects, and so does this file.

Others let the model choose among the 125 mapped classes alone: modestyachts/imagenet-testbed, and
mlfoundations/model-soups, whose maximum over each object's classes gives the same answers. That is easier. Its top-1
accuracy is reported as `top1_among_mapped`, which is not comparable with the paper's.

One difference remains. BiT resizes the shorter side to 512 px and crops the central 480 px (its appendix B); here
pictures pass through the model's own preprocessing, after their red border is cropped.

Shapes: N pictures, K classes of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.errors import DataError
from vitrine.evaluation.metrics import (
    RESAMPLES,
    Classes,
    Flags,
    Interval,
    Scores,
    interval_of_share,
    top_k_correct,
    wilson_interval,
)

TOP = 5


@dataclass(frozen=True, kw_only=True)
class ObjectFigures:
    """Figures of one object; the intervals are Wilson's."""

    name: str
    imagenet_classes: tuple[str, ...]
    num_images: int
    top1: Interval
    top5: Interval


@dataclass(frozen=True, kw_only=True)
class ObjectNetFigures:
    """Figures over all pictures, and by object."""

    num_images: int
    top1: Interval
    top5: Interval
    top1_among_mapped: Interval
    """Among the classes of the overlapping objects alone, as some published code does: higher than `top1`."""
    num_mapped_classes: int
    per_object: tuple[ObjectFigures, ...]
    """Objects with at least one picture."""


def score_objectnet(
    logits: Scores,
    labels: Classes,
    accepted: Sequence[Sequence[int]],
    *,
    objects: Sequence[str],
    class_names: Sequence[str],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> ObjectNetFigures:
    """Score logits (N, K) on objects (N,); `accepted` holds for each object the classes that it may be called."""
    if len(logits) == 0:
        raise DataError("no images to score")
    top1 = any_among_top(logits, labels, accepted, k=1)
    top5 = any_among_top(logits, labels, accepted, k=TOP)
    mapped = sorted({place for places in accepted for place in places})
    renumbered = [[mapped.index(place) for place in places] for places in accepted]
    among_mapped = any_among_top(logits[:, mapped], labels, renumbered, k=1)
    return ObjectNetFigures(
        num_images=len(labels),
        top1=interval_of_share(top1, seed=seed, resamples=resamples),
        top5=interval_of_share(top5, seed=seed, resamples=resamples),
        top1_among_mapped=interval_of_share(among_mapped, seed=seed, resamples=resamples),
        num_mapped_classes=len(mapped),
        per_object=tuple(
            ObjectFigures(
                name=name,
                imagenet_classes=tuple(class_names[place] for place in accepted[number]),
                num_images=int(is_own.sum()),
                top1=_share(top1[is_own]),
                top5=_share(top5[is_own]),
            )
            for number, name in enumerate(objects)
            if (is_own := labels == number).any()
        ),
    )


def any_among_top(logits: Scores, labels: Classes, accepted: Sequence[Sequence[int]], *, k: int) -> Flags:
    """Return for each picture whether any class of its object is among the k highest logits: (N,) of bool."""
    width = max(len(places) for places in accepted)
    # Rows are padded with an object's first class, which changes nothing about "any".
    table = np.array([[*places, *[places[0]] * (width - len(places))] for places in accepted])
    correct: Flags = np.zeros(len(labels), dtype=bool)
    for column in range(width):
        correct |= top_k_correct(logits, table[labels, column], k=k)
    return correct


def _share(flags: NDArray[np.bool_]) -> Interval:
    share = float(flags.mean())
    low, high = wilson_interval(share, len(flags))
    return Interval(value=share, low=low, high=high)
