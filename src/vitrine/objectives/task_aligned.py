"""Which cells learn which object: task-aligned assignment (Feng et al., TOOD, arXiv:2108.07755).

An object is assigned to the cells inside it whose predictions already fit it best, in class and place together; the
target score of a cell is the quality of its box. Nothing here waits for the device, and shapes never change.
Shapes: B images, N cells, M places for objects, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrine.data.preparing.box_view import BoxBatch
from vitrine.models.dense.boxes import iou


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The targets of every cell."""

    boxes: Tensor
    """The box of its object (B, N, 4); undefined without an object."""
    labels: Tensor
    """The class of its object (B, N)."""
    quality: Tensor
    """The target score for this class (B, N), 0 without an object."""
    is_ignored: Tensor
    """Classes that the loss ignores (B, N, K)."""


@torch.no_grad()
def assign(
    boxes: Tensor,
    logits: Tensor,
    cells: Tensor,
    objects: BoxBatch,
    *,
    cells_per_object: int,
    class_power: float,
    place_power: float,
) -> Assignment:
    """Assign objects to cells (N, 3) that predict boxes (B, N, 4) and class logits (B, N, K)."""
    K, M = logits.shape[-1], objects.boxes.shape[1]
    is_inside = inside(cells, objects.boxes)  # (B, M, N)
    is_candidate = is_inside & objects.is_object[..., None]
    overlap = iou(objects.boxes[:, :, None], boxes[:, None]) * is_candidate  # (B, M, N)
    chosen = objects.labels[..., None].expand(-1, -1, boxes.shape[1])
    scores = logits.sigmoid().transpose(1, 2).gather(1, chosen)  # (B, M, N)
    fit = scores**class_power * overlap**place_power
    best = fit.topk(min(cells_per_object, fit.shape[-1]), dim=-1).indices
    is_best = torch.zeros_like(is_candidate).scatter_(-1, best, True) & is_candidate & (overlap > 0)
    # A cell chosen by several objects is assigned to the one that its box overlaps most.
    wanted = torch.where(is_best, overlap, -1.0)
    owner = wanted.argmax(dim=1)  # (B, N)
    is_owned = wanted.gather(1, owner[:, None])[:, 0] > 0
    is_own = is_best & (owner[:, None] == torch.arange(M, device=boxes.device)[:, None])  # (B, M, N)
    fit, overlap = fit * is_own, overlap * is_own
    highest = overlap.amax(dim=-1, keepdim=True)
    quality = fit / fit.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(fit.dtype).tiny) * highest
    ignored = (is_inside & objects.is_ignored[..., None]).to(logits.dtype)  # (B, M, N)
    of_class = torch.nn.functional.one_hot(objects.labels, K).to(logits.dtype)  # (B, M, K)
    return Assignment(
        boxes=objects.boxes.gather(1, owner[..., None].expand(-1, -1, 4)),
        labels=objects.labels.gather(1, owner),
        quality=torch.where(is_owned, quality.amax(dim=1), 0.0),
        is_ignored=(ignored.transpose(1, 2) @ of_class) > 0,
    )


def inside(cells: Tensor, boxes: Tensor) -> Tensor:
    """Return whether the centres of cells (N, 3) are in boxes (B, M, 4), or contain the centre of a smaller one."""
    centres, sides = cells[:, :2], cells[:, 2:]
    left_top, right_bottom = boxes[..., None, :2], boxes[..., None, 2:]
    is_in = ((centres > left_top) & (centres < right_bottom)).all(dim=-1)
    middle = (left_top + right_bottom) / 2
    is_around = ((middle - centres).abs() <= sides / 2).all(dim=-1)
    return is_in | is_around
