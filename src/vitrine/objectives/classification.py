"""Supervised classification: softmax or sigmoid cross-entropy, one loss an image.

Shapes: B images, K classes. Targets are class numbers (B,) or rows (B, K): soft labels, or several labels.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

LossKind = Literal["softmax", "sigmoid"]


def classification_loss(logits: Tensor, targets: Tensor, *, kind: LossKind = "softmax") -> Tensor:
    """Return the loss of each image (B,); the sigmoid's is summed over classes, as in the authors' code."""
    logits = logits.float()
    if kind == "softmax":
        return F.cross_entropy(logits, targets, reduction="none")
    if targets.ndim == 1:
        targets = F.one_hot(targets, logits.shape[1])
    return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none").sum(dim=1)


def num_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Count, on the device, the images whose best class is (among) the target's most likely."""
    best = logits.argmax(dim=1)
    if targets.ndim == 1:
        return (best == targets).sum()
    reached = targets.gather(1, best[:, None])[:, 0]
    return ((reached == targets.amax(dim=1)) & (reached > 0)).sum()
