"""Objects in pictures of any size, picture by picture: for training, evaluation and serving.

A picture is resized to fit the model's input and padded at its right and lower border. Shapes: B pictures, N answers
of a model, n boxes of a picture, K classes.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.annotated_crop import PADDING
from vitrine.data.preparing.preprocess import Preprocess, planes, resize
from vitrine.data.sources.source import Source
from vitrine.evaluation.instance_predictions import found_instances
from vitrine.evaluation.objects import BoxPrediction, unread
from vitrine.evaluation.outputs import Precision
from vitrine.evaluation.reading_ahead import ReadPicture, in_groups, read_ahead
from vitrine.models.dense.boxes import kept_boxes
from vitrine.models.dense.config import DenseConfig

# Pictures per batch.
AT_ONCE = {"cuda": 32, "cpu": 4}
# Best pairs of box and class that are kept per picture before duplicates are suppressed.
MOST_CANDIDATES, MOST_BOXES = 400, 100
# A box that covers a better one of its class by more than this is suppressed.
MOST_OVERLAP = 0.6
LEAST_SCORE = 1e-3

Located: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Boxes (n, 4), classes (n,) and scores (n,) of one picture, best first."""


def predict_boxes(
    module: nn.Module,
    source: Source,
    *,
    preprocess: Preprocess,
    device: torch.device,
    num_workers: int,
    config: DenseConfig,
    precision: Precision = "fp32",
    indices: Sequence[int] | None = None,
) -> Iterator[BoxPrediction]:
    """Predict the objects in pictures of a source, in order; a few pictures are in memory at once.

    `config` is the model's: it says whether the module answers with boxes or with masks of objects.
    """
    chosen = range(len(source)) if indices is None else indices
    reads = read_ahead(source, chosen, preprocess=preprocess, num_workers=num_workers, resize=fitted)
    yield from in_groups(
        reads,
        lambda group: boxes_of_read(module, group, preprocess, device=device, config=config),
        num_pictures=AT_ONCE.get(device.type, AT_ONCE["cpu"]), device=device, precision=precision,
    )  # fmt: skip


def fitted(pixels: Pixels, preprocess: Preprocess) -> Tensor:
    """Resize a picture (H, W, C) to fit the model's input with the same aspect ratio, and pad it: (C, h, w) uint8."""
    height, width = preprocess.size
    rows, columns = fitted_size(pixels.shape[:2], preprocess.size)
    resized = resize(planes(pixels, preprocess.channels), (rows, columns), preprocess.interpolation)
    return F.pad(resized, (0, width - columns, 0, height - rows), value=PADDING)


def fitted_size(size: Sequence[int], most: Sequence[int]) -> tuple[int, int]:
    """Return the height and width of a picture that is resized to fit into another size."""
    factor = fit(size, most)
    rows, columns = (min(max(round(side * factor), 1), limit) for side, limit in zip(size, most, strict=True))
    return rows, columns


def fit(size: Sequence[int], most: Sequence[int]) -> float:
    """Return the factor by which a size fits into another."""
    return min(limit / side for side, limit in zip(size, most, strict=True))


def boxes_of_read(
    module: nn.Module,
    group: Sequence[ReadPicture],
    preprocess: Preprocess,
    *,
    device: torch.device,
    config: DenseConfig,
) -> list[BoxPrediction]:
    """Predict the objects in pictures that were read and padded, all at once."""
    readable = [(read, read.resized) for read in group if read.resized is not None]
    predictions: list[BoxPrediction] = []
    if readable:
        images = preprocess.normalise(torch.stack([resized for _, resized in readable]).to(device))
        answers, reads = module(images), [read for read, _ in readable]
        if config.answers == "instances":
            filled = [fitted_size(read.size, preprocess.size) for read in reads]
            predictions = found_instances(answers, reads, window=preprocess.size, filled=filled)
        else:
            best = best_boxes if config.has_duplicates else single_boxes
            predictions = [
                in_picture(located, read, window=preprocess.size)
                for located, read in zip(best(answers.float()), reads, strict=True)
            ]
    of_index = {one.index: one for one in predictions}
    return [of_index.get(read.index, unread(read.index, read.error)) for read in group]


def in_picture(located: Located, read: ReadPicture, *, window: Sequence[int]) -> BoxPrediction:
    """Return the objects of one picture, with boxes at its own size and within it."""
    boxes, labels, scores = (one.cpu() for one in located)
    limits = torch.tensor([*reversed(read.size)] * 2)
    boxes = torch.minimum((boxes / fit(read.size, window)).clamp(min=0), limits)
    return BoxPrediction(
        index=read.index, size=read.size, boxes=boxes.numpy(), labels=labels.numpy(), scores=scores.numpy()
    )


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
