"""Learn boxes as a set: each token of a YOLOS learns one object, or "no object" (as in DETR, arXiv:2005.12872).

Per image, objects are assigned to tokens at the lowest cost of class, distance and generalised IoU. Shapes:
B images, T tokens, M places for objects, m objects of an image, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.loading.loader import Batch
from vitrine.data.preparing.box_view import BoxBatch
from vitrine.errors import ConfigError
from vitrine.models import Model, ModelConfig, ViTConfig
from vitrine.models.dense.boxes import giou
from vitrine.models.dense.config import YolosConfig
from vitrine.models.dense.yolos import Yolos, in_pixels
from vitrine.objectives.detection import DetectionObjective
from vitrine.objectives.matching import assigned
from vitrine.objectives.objective import Losses, Parts, RunContext, register_objective
from vitrine.objectives.teacher import Teacher


@register_objective
@dataclass(frozen=True, kw_only=True)
class SetDetectionObjective(DetectionObjective):
    """Learn boxes by the detection tokens of a YOLOS."""

    kind: ClassVar[str] = "set-detection"

    num_detections: int = 100
    """Tokens, and so the most objects that can be found."""
    has_middle_positions: bool = False
    """Whether positions are also added after every block but the last."""
    class_weight: float = 1.0
    distance_weight: float = 5.0
    """Weight of the distance of centre and size, as fractions of the picture."""
    box_weight: float = 2.0
    no_object_weight: float = 0.1
    """Weight of the tokens without an object in the loss of the classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most_objects > self.num_detections:
            raise ConfigError(
                f"most_objects must be at most num_detections, got {self.most_objects} and {self.num_detections}"
            )

    def dense_config(self, vit: ViTConfig, *, num_classes: int) -> ModelConfig:
        """Put detection tokens beside the patches of a ViT."""
        return YolosConfig(
            vit=vit, num_classes=num_classes, num_detections=self.num_detections,
            has_middle_positions=self.has_middle_positions,
        )  # fmt: skip

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Return a module that returns logits in training."""
        assert isinstance(model, Yolos)
        return TrainedYolos(model)

    def prepare(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to images, objects, a factor per object, and one per weighted token (B,)."""
        prepare_boxes = super().prepare(context)

        def prepare(batch: Batch) -> Parts:
            *parts, per_object = prepare_boxes(batch)
            num_objects, B = len(batch) / per_object, len(batch)
            weight = num_objects + self.no_object_weight * (B * self.num_detections - num_objects)
            return *parts, per_object, B / weight

        return prepare

    def losses(self, module: nn.Module, parts: Parts) -> Losses:
        """Return the loss of each image."""
        images, *objects, per_object, per_token = parts
        boxes, logits = module(images, True)
        with torch.autocast(images.device.type, enabled=False):
            return self.set_losses(
                boxes, logits, BoxBatch(*objects), images, per_object=per_object, per_token=per_token
            )

    def set_losses(
        self,
        boxes: Tensor,
        logits: Tensor,
        objects: BoxBatch,
        images: Tensor,
        *,
        per_object: Tensor,
        per_token: Tensor,
    ) -> Losses:
        """Return the loss (B,) of boxes (B, T, 4), as centre and size, and logits (B, T, K + 1)."""
        true = in_shares(objects.boxes, images)  # (B, M, 4)
        in_image = in_pixels(boxes, images)
        image, place, token = self.matched(boxes, in_image, logits, objects, true)
        wanted = torch.full(logits.shape[:2], logits.shape[-1] - 1, device=logits.device)
        wanted[image, token] = objects.labels[image, place]
        entropies = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        is_empty = wanted == logits.shape[-1] - 1
        of_class = torch.where(is_empty, self.no_object_weight * entropies, entropies).sum(dim=1) * per_token
        distances = (boxes[image, token] - true[image, place]).abs().sum(dim=-1)
        misfits = 1 - giou(in_image[image, token], objects.boxes[image, place])
        zeros = torch.zeros_like(of_class)
        of_distance = zeros.index_add(0, image, distances) * per_object
        of_box = zeros.index_add(0, image, misfits) * per_object
        losses = self.class_weight * of_class + self.distance_weight * of_distance + self.box_weight * of_box
        sums = {"class_loss": of_class, "distance_loss": of_distance, "box_loss": of_box}
        return losses, {name: values.detach().sum() for name, values in sums.items()}

    @torch.no_grad()
    def matched(
        self, boxes: Tensor, in_image: Tensor, logits: Tensor, objects: BoxBatch, true: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return image, place and token of every object that is matched."""
        chosen = objects.labels[:, None].expand(-1, logits.shape[1], -1)
        costs = (
            self.distance_weight * (boxes[:, :, None] - true[:, None]).abs().sum(dim=-1)
            - self.box_weight * giou(in_image[:, :, None], objects.boxes[:, None])
            - self.class_weight * logits.softmax(dim=-1).gather(2, chosen)
        )  # (B, T, M)
        # One copy to the host for all images.
        matrices = np.nan_to_num(costs.double().cpu().numpy(), nan=0.0, posinf=1e6)
        is_object = objects.is_object.cpu().numpy()
        image, place = np.nonzero(is_object)
        token = [assigned(matrices[row][:, is_object[row]]) for row in range(len(matrices))]
        device = boxes.device
        return (
            torch.from_numpy(image).to(device),
            torch.from_numpy(place).to(device),
            torch.from_numpy(np.concatenate(token)).to(device),
        )


class TrainedYolos(nn.Module):
    """A YOLOS that returns logits in training; called with images alone, it returns the model's output."""

    def __init__(self, model: Yolos) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, is_learning: bool = False) -> tuple[Tensor, Tensor] | Tensor:
        """Return boxes and logits; or boxes in pixels with probabilities (B, T, 4 + K)."""
        return self.model.answers(images) if is_learning else self.model(images)


def in_shares(boxes: Tensor, images: Tensor) -> Tensor:
    """Return boxes (B, M, 4) in pixels as centre and size in fractions of images (B, C, H, W)."""
    height, width = images.shape[2:]
    left, top, right, bottom = boxes.unbind(dim=-1)
    return torch.stack(
        [
            (left + right) / 2 / width,
            (top + bottom) / 2 / height,
            (right - left) / width,
            (bottom - top) / height,
        ],
        dim=-1,
    )
