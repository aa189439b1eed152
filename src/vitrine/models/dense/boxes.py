"""Arithmetic of boxes: overlaps and suppression. Boxes are (left, top, right, bottom), right and bottom exclusive.

Shapes: B images, N boxes of an image, K classes; "..." are any leading dimensions.
"""

import torch
from torch import Tensor

# Keeps divisions finite for boxes without area.
TINY = 1e-7


def area_of(boxes: Tensor) -> Tensor:
    """Return the areas of boxes (..., 4): (...); 0 for empty ones."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def overlaps(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the intersection and the union of boxes (..., 4) with others (..., 4), which are broadcast: (...)."""
    corners = torch.maximum(boxes[..., :2], others[..., :2]), torch.minimum(boxes[..., 2:], others[..., 2:])
    sides = (corners[1] - corners[0]).clamp(min=0)
    both = sides[..., 0] * sides[..., 1]
    return both, area_of(boxes) + area_of(others) - both


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return intersection over union of boxes (..., 4) with others (..., 4): (...)."""
    both, union = overlaps(boxes, others)
    return both / (union + TINY)


def giou(boxes: Tensor, others: Tensor) -> Tensor:
    """Return the generalised IoU (arXiv:1902.09630): IoU minus the share of the hull that neither covers (...)."""
    both, union = overlaps(boxes, others)
    hull = torch.cat(
        [torch.minimum(boxes[..., :2], others[..., :2]), torch.maximum(boxes[..., 2:], others[..., 2:])],
        dim=-1,
    )
    whole = area_of(hull)
    return both / (union + TINY) - (whole - union) / (whole + TINY)


def kept_boxes(boxes: Tensor, labels: Tensor, *, threshold: float) -> Tensor:
    """Suppress boxes (B, N, 4) that overlap a better one of their class; return which are kept (B, N).

    Boxes must be sorted, best first. The result is that of the usual loop: a box is kept unless a kept, better one
    overlaps it. This rule is repeated for all images at once until nothing changes.
    """
    covers = iou(boxes[:, :, None], boxes[:, None]) > threshold  # (B, N, N)
    covers &= labels[:, :, None] == labels[:, None]
    covers = covers.triu(diagonal=1)  # better ones are before worse ones
    kept = torch.ones_like(labels, dtype=torch.bool)
    while True:
        now = ~(covers & kept[:, :, None]).any(dim=1)
        if torch.equal(now, kept):
            return kept
        kept = now
