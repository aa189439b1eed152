"""Temperature scaling: one number that logits are divided by, so that probabilities match how often they are right.

It is fitted on images that the logits have not seen (Guo et al., arXiv:1706.04599). Dividing the weights of a linear
head by it is the same as dividing the logits, so a calibrated model is an ordinary model: every format and every
program that reads it is calibrated.

Shapes: N images, K classes.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.models import Model

LOWEST, HIGHEST = 1e-3, 1e3
# Halvings of the interval's golden section: log(1e6) x 0.618^40 is below 1e-7.
SECTIONS = 40
GOLDEN = (math.sqrt(5) - 1) / 2


def fit_temperature(logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the temperature with the least log loss on logits (N, K) and labels (N,), or flags (N, K).

    Targets are smoothed as Platt's, (N + 1) / (N + 2): twenty correct answers do not prove that all will be correct.
    """
    logits = logits.double()
    w = logits.new_ones(len(logits)) if weights is None else weights.double()
    soft = smoothed(targets, num_classes=logits.shape[1], num_images=float(w.sum()))

    def loss_at(log_temperature: float) -> float:
        scaled = logits / math.exp(log_temperature)
        return float(w @ log_losses(scaled, soft, is_multi_label=targets.ndim == 2))

    low, high = math.log(LOWEST), math.log(HIGHEST)  # the loss is convex in 1 / temperature
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
    soft = smoothed(targets, num_classes=logits.shape[1], num_images=len(logits))
    return float(log_losses(logits.double() / temperature, soft, is_multi_label=targets.ndim == 2).mean())


def smoothed(targets: Tensor, *, num_classes: int, num_images: float) -> Tensor:
    """Turn labels (N,) or flags (N, K) into probabilities (N, K) that are never quite 0 or 1."""
    epsilon = 1 / (num_images + 2)
    if targets.ndim == 2:
        return targets.double() * (1 - 2 * epsilon) + epsilon
    return F.one_hot(targets.long(), num_classes).double() * (1 - epsilon) + epsilon / num_classes


def log_losses(logits: Tensor, targets: Tensor, *, is_multi_label: bool) -> Tensor:
    """Return the log loss of each image (N,) for probabilities (N, K) as targets; summed over several labels."""
    if is_multi_label:
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1)
    return F.cross_entropy(logits, targets, reduction="none")


@torch.no_grad()
def divide_head(model: Model, temperature: float) -> None:
    """Divide a model's logits by `temperature`, in the weights of its head."""
    for name in ("head", "distillation_head"):
        head = getattr(model, name, None)
        if isinstance(head, nn.Module):
            for parameter in head.parameters():
                parameter.div_(temperature)
