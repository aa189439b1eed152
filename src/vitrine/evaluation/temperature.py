"""Temperature scaling: one number that logits are divided by, so that probabilities match how often they are right.

It is fitted on images that the logits have not seen (Guo et al., arXiv:1706.04599). Dividing the weights of a linear
head by it is the same as dividing the logits, so a calibrated model is an ordinary model: every format and every
program that reads it is calibrated.

Shapes: N images, K classes.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.models import Model

LOWEST, HIGHEST = 1e-3, 1e3
# The loss is first read at these many temperatures, because a sum of both losses may have more than one minimum.
PLACES = 25
# Halvings of the golden section between two of them: a factor of 3 x 0.618^25 is below 2e-5.
SECTIONS = 25
GOLDEN = (math.sqrt(5) - 1) / 2
# With this many images, both losses count alike.
EQUAL = 100
# Confidences are told from 1 up to here.
SURE = 1e-16


def fit_temperature(logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the best temperature of logits (N, K) for labels (N,), or flags (N, K).

    Labels: the least sum of two log losses, that of the answer being right and, less with more images, that of all
    classes. The second alone is too doubtful, because a few answers that are far off outweigh the others; the first
    alone is less certain with few images (benchmarks/temperatures.py).
    """
    logits = logits.double()
    w = logits.new_ones(len(logits)) if weights is None else weights.double()
    num_images = float(w.sum())

    def loss_at(log_temperature: float) -> float:
        scaled = logits / math.exp(log_temperature)
        if targets.ndim == 2:
            return float(w @ log_losses(scaled, targets, num_images=num_images))
        scores = scaled.log_softmax(dim=1)
        every = _label_losses(scores, targets, num_images=num_images)
        return float(
            w @ (every * (EQUAL / num_images) + _answer_losses(scores, targets, num_images=num_images))
        )

    places = np.linspace(math.log(LOWEST), math.log(HIGHEST), PLACES)
    best = int(np.argmin([loss_at(place) for place in places]))
    low, high = float(places[max(best - 1, 0)]), float(places[min(best + 1, PLACES - 1)])
    inner = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    values = [loss_at(place) for place in inner]
    for _ in range(SECTIONS):
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - GOLDEN * (high - low)
            values[0] = loss_at(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + GOLDEN * (high - low)
            values[1] = loss_at(inner[1])
    return math.exp((low + high) / 2)


def calibrated_loss(logits: Tensor, targets: Tensor) -> float:
    """Return the mean log loss of logits (N, K) at their best temperature."""
    temperature = fit_temperature(logits, targets)
    return float(log_losses(logits.double() / temperature, targets, num_images=len(logits)).mean())


def log_losses(logits: Tensor, targets: Tensor, *, num_images: float) -> Tensor:
    """Return the log loss of each image (N,) for labels (N,) or flags (N, K); summed over several labels.

    Targets are smoothed as Platt's: twenty correct answers do not prove that all will be correct. The rest goes to
    the most likely other class; spread over all of them, it would punish every low probability.
    """
    if targets.ndim == 1:
        return _label_losses(logits.log_softmax(dim=1), targets, num_images=num_images)
    rest = 1 / (num_images + 2)
    soft = targets.double() * (1 - 2 * rest) + rest
    return F.binary_cross_entropy_with_logits(logits, soft, reduction="none").sum(dim=1)


def answer_losses(logits: Tensor, labels: Tensor, *, num_images: float) -> Tensor:
    """Return the log loss of each image (N,) for one event: the most likely class is the label."""
    return _answer_losses(logits.log_softmax(dim=1), labels, num_images=num_images)


def _label_losses(scores: Tensor, labels: Tensor, *, num_images: float) -> Tensor:
    """Return the log loss of all classes (N,) for log probabilities (N, K)."""
    if scores.shape[1] == 1:  # no other class
        return -scores[:, 0]
    rest, label = 1 / (num_images + 2), labels.long()[:, None]
    others = scores.scatter(1, label, -math.inf).amax(dim=1)
    return -(1 - rest) * scores.gather(1, label)[:, 0] - rest * others


def _answer_losses(scores: Tensor, labels: Tensor, *, num_images: float) -> Tensor:
    """Return the log loss of the answer (N,) for log probabilities (N, K)."""
    rest = 1 / (num_images + 2)
    confidence, answer = scores.max(dim=1)
    confidence = confidence.clamp(max=-SURE)
    is_right = (answer == labels).double() * (1 - 2 * rest) + rest
    return -is_right * confidence - (1 - is_right) * (-torch.expm1(confidence)).log()


@torch.no_grad()
def divide_head(model: Model, temperature: float) -> None:
    """Divide a model's logits by `temperature`, in the weights of its head."""
    for name in ("head", "distillation_head"):
        head = getattr(model, name, None)
        if isinstance(head, nn.Module):
            for parameter in head.parameters():
                parameter.div_(temperature)
