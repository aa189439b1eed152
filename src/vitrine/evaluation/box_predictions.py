"""Boxes in pictures of any size, picture by picture: for training, evaluation and serving.

A picture is resized to fit the model's input and padded at its right and lower border. Shapes: B pictures, N answers
of a model, n boxes of a picture, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.mask_view import PADDING
from vitrine.data.preparing.preprocess import Preprocess, planes, resize
from vitrine.data.sources.source import Source
from vitrine.evaluation.detection import Detections, Truths
from vitrine.evaluation.outputs import Precision, casting
from vitrine.evaluation.reading_ahead import ReadPicture, read_ahead
from vitrine.models.dense.boxes import kept_boxes

# Pictures per batch.
AT_ONCE = {"cuda": 32, "cpu": 4}
# Best pairs of box and class that are kept per picture before duplicates are suppressed.
MOST_CANDIDATES, MOST_BOXES = 400, 100
# A box that covers a better one of its class by more than this is suppressed.
MOST_OVERLAP = 0.6
LEAST_SCORE = 1e-3

Located: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Boxes (n, 4), classes (n,) and scores (n,) of one picture, best first."""


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
    error: str | None = None


def predict_boxes(
    module: nn.Module,
    source: Source,
    *,
    preprocess: Preprocess,
    device: torch.device,
    num_workers: int,
    has_duplicates: bool,
    precision: Precision = "fp32",
    indices: Sequence[int] | None = None,
) -> Iterator[BoxPrediction]:
    """Predict the objects in pictures of a source, in order; a few pictures are in memory at once.

    `has_duplicates` says whether several answers of the model may be about one object.
    """
    chosen = range(len(source)) if indices is None else indices
    count = AT_ONCE.get(device.type, AT_ONCE["cpu"])
    group: list[ReadPicture] = []

    def predicted() -> list[BoxPrediction]:
        # Not inference mode: tensors that a module caches in it could not be trained with afterwards.
        with torch.no_grad(), casting(device, precision):
            return boxes_of_read(module, group, preprocess, device=device, has_duplicates=has_duplicates)

    for read in read_ahead(source, chosen, preprocess=preprocess, num_workers=num_workers, resize=fitted):
        group.append(read)
        if len(group) >= count:
            yield from predicted()
            group.clear()
    yield from predicted()


def fitted(pixels: Pixels, preprocess: Preprocess) -> Tensor:
    """Resize a picture (H, W, C) to fit the model's input with the same aspect ratio, and pad it: (C, h, w) uint8."""
    height, width = preprocess.size
    factor = fit(pixels.shape[:2], preprocess.size)
    rows, columns = (
        min(max(round(side * factor), 1), most)
        for side, most in zip(pixels.shape[:2], preprocess.size, strict=True)
    )
    resized = resize(planes(pixels, preprocess.channels), (rows, columns), preprocess.interpolation)
    return F.pad(resized, (0, width - columns, 0, height - rows), value=PADDING)


def fit(size: Sequence[int], most: Sequence[int]) -> float:
    """Return the factor by which a size fits into another."""
    return min(limit / side for side, limit in zip(size, most, strict=True))


def boxes_of_read(
    module: nn.Module,
    group: Sequence[ReadPicture],
    preprocess: Preprocess,
    *,
    device: torch.device,
    has_duplicates: bool,
) -> list[BoxPrediction]:
    """Predict the objects in pictures that were read and padded, all at once."""
    best = best_boxes if has_duplicates else single_boxes
    readable = [(read, read.resized) for read in group if read.resized is not None]
    prediction: dict[int, Located] = {}
    if readable:
        images = preprocess.normalise(torch.stack([resized for _, resized in readable]).to(device))
        for (read, _), one in zip(readable, best(module(images).float()), strict=True):
            prediction[read.index] = one
    nothing = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    result = []
    for read in group:
        boxes, labels, scores = prediction.get(read.index, nothing)
        height, width = read.size
        factor = fit(read.size, preprocess.size) if height else 1.0
        limits = torch.tensor([width, height, width, height])
        boxes = torch.minimum((boxes.cpu() / factor).clamp(min=0), limits)
        result.append(
            BoxPrediction(
                index=read.index,
                size=read.size,
                boxes=boxes.numpy(),
                labels=labels.cpu().numpy(),
                scores=scores.cpu().numpy(),
                error=read.error,
            )
        )
    return result


def single_boxes(answers: Tensor) -> list[Located]:
    """Return boxes, classes and scores of each picture from answers (B, N, 4 + K), one per object."""
    scores, labels = answers[..., 4:].max(dim=-1)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    labels = labels.gather(1, order)
    boxes = answers[..., :4].gather(1, order[..., None].expand(-1, -1, 4))
    return [
        (one[:MOST_BOXES], own[:MOST_BOXES], score[:MOST_BOXES])
        for one, own, score in zip(boxes, labels, scores, strict=True)
    ]


def best_boxes(answers: Tensor) -> list[Located]:
    """Return boxes (n, 4), classes and scores (n,) of each picture from answers (B, N, 4 + K), without duplicates."""
    boxes, probabilities = answers[..., :4], answers[..., 4:]
    K = probabilities.shape[-1]
    flat = probabilities.flatten(1)
    scores, places = flat.topk(min(MOST_CANDIDATES, flat.shape[1]), dim=1)
    labels = places % K
    chosen = boxes.gather(1, (places // K)[..., None].expand(-1, -1, 4))
    kept = kept_boxes(chosen, labels, threshold=MOST_OVERLAP) & (scores > LEAST_SCORE)
    return [
        (boxes[keep][:MOST_BOXES], labels[keep][:MOST_BOXES], scores[keep][:MOST_BOXES])
        for boxes, labels, scores, keep in zip(chosen, labels, scores, kept, strict=True)
    ]


def by_class(annotation: Annotation, prediction: BoxPrediction) -> dict[int, tuple[Truths, Detections]]:
    """Sort the true and the found objects of a picture by class, as the score reads them."""
    areas = annotation.areas
    if areas is None:
        sides = annotation.boxes[:, 2:] - annotation.boxes[:, :2]
        areas = sides[:, 0] * sides[:, 1]
    pairs: dict[int, tuple[Truths, Detections]] = {}
    for number in sorted({*annotation.labels.tolist(), *prediction.labels.tolist()}):
        true, own = annotation.labels == number, prediction.labels == number
        pairs[number] = (
            Truths(
                boxes=with_sides(annotation.boxes[true]),
                areas=areas[true].astype(np.float64),
                is_crowd=annotation.is_ignored[true],
            ),
            Detections(
                boxes=with_sides(prediction.boxes[own]), scores=prediction.scores[own].astype(np.float64)
            ),
        )
    return pairs


def with_sides(boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return boxes (n, 4) as left, top, width and height."""
    exact = boxes.astype(np.float64)
    return np.concatenate([exact[:, :2], exact[:, 2:] - exact[:, :2]], axis=1)
