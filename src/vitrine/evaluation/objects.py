"""The objects that were predicted in a picture, with boxes or with masks, beside the true ones.

Shapes: n predicted objects, P = ceil(n / 8) planes of bits, D predictions and G truths, H x W pixels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.annotation import Annotation, Planes
from vitrine.data.decoding.mask_planes import chosen_planes, plane_overlaps
from vitrine.evaluation.detection import Detections, Numbers, Truths, ious, shares_of_union


@dataclass(frozen=True, kw_only=True)
class BoxPrediction:
    """The objects in one picture, best first, or why it cannot be read."""

    index: int
    size: tuple[int, int] = (0, 0)
    """Height and width of the picture."""
    boxes: NDArray[np.float32]
    """Left, top, right, bottom in pixels (n, 4); right and bottom are outside."""
    labels: NDArray[np.int64]
    scores: NDArray[np.float32]
    planes: Planes | None = None
    """The mask of object i as bit i % 8 of plane i // 8 (P, H, W), if the model predicts masks."""
    error: str | None = None

    def first(self, count: int) -> "BoxPrediction":
        """Return the best objects alone."""
        planes = None if self.planes is None else chosen_planes(self.planes, np.arange(count))
        return BoxPrediction(
            index=self.index, size=self.size, boxes=self.boxes[:count], labels=self.labels[:count],
            scores=self.scores[:count], planes=planes, error=self.error,
        )  # fmt: skip


def unread(index: int, error: str | None) -> BoxPrediction:
    """Return the prediction about a picture that cannot be read."""
    return BoxPrediction(
        index=index,
        boxes=np.zeros((0, 4), dtype=np.float32),
        labels=np.zeros(0, dtype=np.int64),
        scores=np.zeros(0, dtype=np.float32),
        error=error,
    )


def by_class(annotation: Annotation, prediction: BoxPrediction) -> dict[int, tuple[Truths, Detections]]:
    """Sort the true and the predicted objects of a picture by class, as the score reads them."""
    pairs: dict[int, tuple[Truths, Detections]] = {}
    for number in sorted({*annotation.labels.tolist(), *prediction.labels.tolist()}):
        true, own = annotation.labels == number, prediction.labels == number
        truths = truths_of(annotation, true)
        areas = overlaps = None
        if prediction.planes is not None:
            areas, overlaps = mask_overlaps(annotation, prediction, np.flatnonzero(true), np.flatnonzero(own))
        pairs[number] = (
            truths,
            Detections(
                boxes=with_sides(prediction.boxes[own]), scores=prediction.scores[own].astype(np.float64),
                areas=areas, overlaps=overlaps,
            ),
        )  # fmt: skip
    return pairs


def truths_of(annotation: Annotation, chosen: NDArray[np.bool_]) -> Truths:
    """Return some of the true objects of a picture, as the score reads them."""
    areas = annotation.areas
    if areas is None:
        sides = annotation.boxes[:, 2:] - annotation.boxes[:, :2]
        areas = sides[:, 0] * sides[:, 1]
    return Truths(
        boxes=with_sides(annotation.boxes[chosen]),
        areas=areas[chosen].astype(np.float64),
        is_crowd=annotation.is_ignored[chosen],
    )


def overlaps_of(annotation: Annotation, prediction: BoxPrediction) -> Numbers:
    """Return the overlap of every predicted object with every true one (D, G): of their masks, or of their boxes."""
    everything = np.ones(len(annotation.labels), dtype=bool)
    if prediction.planes is None:
        return ious(with_sides(prediction.boxes), truths_of(annotation, everything))
    true, own = np.arange(len(annotation.labels)), np.arange(len(prediction.labels))
    return mask_overlaps(annotation, prediction, true, own)[1]


def mask_overlaps(
    annotation: Annotation,
    prediction: BoxPrediction,
    true: NDArray[np.int64],
    own: NDArray[np.int64],
) -> tuple[Numbers, Numbers]:
    """Return the areas of some predicted masks (D,), and their overlaps with some true ones (D, G).

    Pixels that count nowhere belong to no mask.
    """
    assert annotation.planes is not None
    assert prediction.planes is not None
    planes = chosen_planes(prediction.planes, own)
    if annotation.is_void is not None:
        planes &= ~(annotation.is_void.astype(np.uint8) * 255)
    both, areas, others = plane_overlaps(planes, len(own), chosen_planes(annotation.planes, true), len(true))
    return areas, shares_of_union(both, areas, others, is_crowd=annotation.is_ignored[true])


def with_sides(boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return boxes (n, 4) as left, top, width and height."""
    exact = boxes.astype(np.float64)
    return np.concatenate([exact[:, :2], exact[:, 2:] - exact[:, :2]], axis=1)
