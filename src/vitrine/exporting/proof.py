"""Proof that an export computes the same as the model, and its change in accuracy.

Shapes: N images, K classes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source
from vitrine.evaluation.metrics import Interval, interval_of_share, top_k_correct
from vitrine.evaluation.outputs import run_model
from vitrine.exporting.dense_model import DenseInferenceModel
from vitrine.models import Model
from vitrine.models.dense.model import DenseModel

Answer = Callable[[Tensor], Mapping[str, Tensor]]
"""Maps normalised images (B, C, height, width) to `logits` (B, K), where there is a head, and `embedding`."""
BATCHES = (1, 2, 5)
# Kernels add in different orders: over fifty convolutions that changes logits by 2e-5 of the largest in fp32.
TOLERANCE = 1e-4
# Difference that a different order of sums may cause in logits close to zero.
SMALLEST = 1e-6
# The user decides how much a lower precision may change logits: the change is reported without a verdict.
COMPARED_EXACTLY = ("fp32",)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The differences between an export's outputs and the model's, on the same images."""

    against: str
    """The runtime that computed from the written file, with its version."""
    precision: str
    num_images: int
    largest: float | None
    """The largest difference of a logit (of the embedding without a head); None if it could not be compared."""
    scale: float | None
    """The largest logit, as the scale of differences."""
    embedding: float | None
    """The largest difference of the embedding, of boxes or of masks, over the largest value; None without them."""
    top1: float | None
    """The share of the images whose highest logit is the same; of pixels or boxes, whose highest score is."""
    batches: tuple[int, ...]
    """Batch sizes that gave the same answers."""
    reason: str = ""
    """Why nothing could be compared."""
    explained: str = ""
    """Why a difference is expected."""
    output: str = "logits"
    """The answer that is compared first: `logits`, `scores` (of pixels, boxes or masks), or `embedding`."""

    @property
    def agrees(self) -> bool | None:
        """Whether every difference is rounding; None if nothing could be compared, or the precision is lower."""
        if self.largest is None or self.precision not in COMPARED_EXACTLY:
            return None
        is_near = self.largest <= TOLERANCE * (self.scale or 0.0) + SMALLEST
        is_near = is_near and (self.embedding is None or self.embedding <= TOLERANCE)
        return is_near and self.batches == BATCHES


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Top-1 on the given data, and its change from the model's own."""

    against: str
    precision: str
    num_images: int
    top1: Interval
    changed: float
    """The share of the images whose prediction differs from the model's."""
    cost: float
    """Top-1 of the model minus that of the export."""


def reference(model: Model) -> Answer:
    """Return the function that computes the model's own outputs, without gradients."""

    if isinstance(model, DenseModel):
        dense = DenseInferenceModel(model)
        return lambda images: dict(zip(dense.output_names, dense(images), strict=True))

    def answer(images: Tensor) -> dict[str, Tensor]:
        with torch.inference_mode():
            features = model.features(images)
        named = {"embedding": features["representation"]}
        return named | ({"logits": features["logits"]} if "logits" in features else {})

    return answer


def answers_of(answer: Answer, images: Tensor, *, batch_size: int = max(BATCHES)) -> dict[str, Tensor]:
    """Collect the answers for all images (N, C, height, width), some at a time."""
    parts = [answer(part) for part in torch.split(images, batch_size)]
    return {name: torch.cat([part[name].float() for part in parts]) for name in parts[0]}


def compare(
    against: str,
    answer: Answer,
    *,
    expected: Mapping[str, Tensor],
    images: Tensor,
    precision: str = "fp32",
    explained: str = "",
) -> Agreement:
    """Compare answers with the model's own on all images, and again on the first 1, 2 and 5 of them."""
    # A page's graph also returns attention, which is not an output of the model and is not compared.
    actual = {name: rows for name, rows in answers_of(answer, images).items() if name in expected}
    main = next(name for name in ("logits", "scores", "embedding") if name in expected)
    shapes = next((name for name in ("boxes", "masks") if name in expected), None)
    top1 = None
    if main != "embedding":
        axis = 1 if shapes is None else -1
        top1 = (actual[main].argmax(dim=axis) == expected[main].argmax(dim=axis)).double().mean().item()
    proven = []
    worst = {name: largest_difference(actual[name], expected[name]) for name in actual}
    scales = {name: expected[name].abs().max().item() for name in actual}
    for size in BATCHES:
        rows = torch.arange(size) % len(images)
        part = answer(images[rows])
        apart = {name: largest_difference(part[name], expected[name][rows]) for name in actual}
        limit = {name: max(TOLERANCE * scales[name] + SMALLEST, 2 * worst[name]) for name in actual}
        if all(apart[name] <= limit[name] for name in actual):
            proven.append(size)
    second = shapes or "embedding"
    embedding = worst.get(second)
    return Agreement(
        against=against,
        precision=precision,
        num_images=len(images),
        largest=worst[main],
        scale=scales[main],
        embedding=None if embedding is None else embedding / max(scales[second], 1e-12),
        top1=top1,
        batches=tuple(proven),
        explained=explained,
        output=main if shapes is None else f"scores of {shapes}",
    )


def not_compared(against: str, reason: str) -> Agreement:
    """Record that nothing could be compared, and why."""
    return Agreement(
        against=against,
        precision="fp32",
        num_images=0,
        largest=None,
        scale=None,
        embedding=None,
        top1=None,
        batches=(),
        reason=reason,
    )


def largest_difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference; infinite for another shape, NaN or infinity."""
    if actual.shape != expected.shape:
        return float("inf")
    apart = (actual.double() - expected.double()).abs().max().item()
    return apart if math.isfinite(apart) else float("inf")


def measure_accuracy(
    model: Model,
    others: Sequence[tuple[str, str, Answer]],
    source: Source,
    *,
    preprocess: Preprocess,
    num_workers: int = 2,
) -> tuple[Accuracy, ...]:
    """Measure top-1 of the model and of (name, precision, answer) each on the same labelled images."""

    def logits(answer: Answer, what: str) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        outputs = run_model(
            model,
            source,
            preprocess=preprocess,
            function=lambda images: answer(images)["logits"],
            batch_size=max(BATCHES),
            num_workers=num_workers,
            what=what,
        )
        return outputs.rows.numpy()[outputs.readable], outputs.readable

    own, readable = logits(lambda images: {"logits": model(images)}, "Accuracy of the model")
    labels = source.labels[readable]
    own_top1 = top_k_correct(own, labels, k=1).mean()
    scores = []
    for name, precision, answer in others:
        rows, _ = logits(answer, f"Accuracy in {precision}")
        right = top_k_correct(rows, labels, k=1)
        scores.append(
            Accuracy(
                against=name,
                precision=precision,
                num_images=len(labels),
                top1=interval_of_share(right),
                changed=float((rows.argmax(axis=1) != own.argmax(axis=1)).mean()),
                cost=float(own_top1 - right.mean()),
            )
        )
    return tuple(scores)
