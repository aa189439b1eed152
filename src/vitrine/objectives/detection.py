"""Learn boxes: every cell of a dense detector predicts whether it has found an object, its class and its box.

The score of a cell is trained towards the quality of its box (quality focal loss, arXiv:2006.04388), its box by the
generalised IoU (arXiv:1902.09630); both are averaged over the objects of the batch.

Shapes: B images of C channels, N cells, M places for objects, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.decoding.annotation import DataTask
from vitrine.data.loading.loader import Batch
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.preparing.box_view import BoxBatch, BoxView, boxes_in
from vitrine.data.preparing.training_view import TrainView
from vitrine.errors import ConfigError
from vitrine.models import Model, ModelConfig, ViTConfig
from vitrine.models.dense.boxes import giou
from vitrine.models.dense.config import DenseConfig, DetectorConfig
from vitrine.models.dense.detector import Detector
from vitrine.objectives.annotated_pictures import augmented_pictures, object_evaluation
from vitrine.objectives.objective import (
    Losses,
    Objective,
    Parts,
    RunContext,
    Validation,
    register_objective,
)
from vitrine.objectives.segmentation import PICTURE_SETTINGS
from vitrine.objectives.task_aligned import Assignment, assign
from vitrine.objectives.teacher import Teacher


@register_objective
@dataclass(frozen=True, kw_only=True)
class DetectionObjective(Objective):
    """Learn boxes by a dense detector on a feature pyramid, with task-aligned assignment."""

    kind: ClassVar[str] = "detection"
    weights_prefix: ClassVar[str] = "model."
    task: ClassVar[DataTask] = "boxes"

    width: int = 192
    """Channels of the pyramid and of the heads."""
    levels: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25)
    """Cells per patch and side in each level of the pyramid."""
    num_convs: int = 2
    scale: tuple[float, float] = (0.5, 1.5)
    """Shorter side of the resized picture, in sides of the crop."""
    most_objects: int = 100
    """Most objects in a picture."""
    cells_per_object: int = 13
    """Number of cells that are assigned to an object."""
    class_power: float = 1.0
    place_power: float = 6.0
    """Exponents of class score and overlap when cells are assigned."""
    focus: float = 2.0
    """Exponent of the distance between score and quality in the loss of the scores."""
    box_weight: float = 2.0

    def __post_init__(self) -> None:
        for name in ("most_objects", "cells_per_object"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def needs_labels(self) -> bool:
        """The decoder has an output per class."""
        return True

    @property
    def metric(self) -> str:
        """COCO's average precision selects the best weights."""
        return "AP"

    @property
    def neutral_settings(self) -> Mapping[str, Any]:
        """Augmentation moves pixels only together with their boxes."""
        return PICTURE_SETTINGS

    def dense_config(self, vit: ViTConfig, *, num_classes: int) -> ModelConfig:
        """Put the detector on a ViT."""
        return DetectorConfig(
            vit=vit, num_classes=num_classes, width=self.width, levels=self.levels, num_convs=self.num_convs
        )

    def check_model(self, config: ModelConfig) -> None:
        """Refuse a model that does not predict boxes."""
        if not isinstance(config, DenseConfig) or config.answers != "boxes":
            raise ConfigError(
                "boxes are learned by fine-tuning a ViT: use `finetune` with data that has boxes"
            )

    def view(self, pictures: TrainView) -> AnyView:
        """Cut a picture with its boxes."""
        return BoxView(
            size=pictures.size, image_channels=pictures.channels, scale=self.scale, flip=pictures.flip,
            most_objects=self.most_objects,
        )  # fmt: skip

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Return a module that returns logits in training."""
        assert isinstance(model, Detector)
        return TrainedDetector(model)

    def prepare(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to images, the four parts of the objects, and a factor per image (B,).

        The factor makes the mean over images the mean over the objects of the whole batch.
        """

        def prepare(batch: Batch) -> Parts:
            channels = context.preprocess.channels
            objects = boxes_in(batch.images, image_channels=channels, most_objects=self.most_objects)
            num_objects = objects.is_object.sum().clamp_min(1).float()
            per_object = torch.ones(len(batch), device=batch.images.device) * len(batch) / num_objects
            return augmented_pictures(batch, context), *objects, per_object

        return prepare

    def losses(self, module: nn.Module, parts: Parts) -> Losses:
        """Return the loss of each image."""
        images, *objects, per_object = parts
        boxes, logits, cells = module(images, True)
        with torch.autocast(images.device.type, enabled=False):
            return self.box_losses(boxes, logits, cells, BoxBatch(*objects), per_object=per_object)

    def box_losses(
        self, boxes: Tensor, logits: Tensor, cells: Tensor, objects: BoxBatch, *, per_object: Tensor
    ) -> Losses:
        """Return the loss (B,) of boxes (B, N, 4) and logits (B, N, K) of cells (N, 3) for the objects."""
        assignment = assign(
            boxes, logits, cells, objects, cells_per_object=self.cells_per_object,
            class_power=self.class_power, place_power=self.place_power,
        )  # fmt: skip
        of_class = score_losses(logits, assignment, focus=self.focus)
        of_box = ((1 - giou(boxes, assignment.boxes)) * assignment.quality).sum(dim=1)
        of_class, of_box = of_class * per_object, of_box * per_object
        losses = of_class + self.box_weight * of_box
        return losses, {"class_loss": of_class.detach().sum(), "box_loss": of_box.detach().sum()}

    def evaluation(
        self, context: RunContext, validation: Validation
    ) -> Callable[[nn.Module], dict[str, float]]:
        """Return the function that computes COCO's metrics on the validation pictures, each at its own size."""
        return object_evaluation(context, validation)


class TrainedDetector(nn.Module):
    """A detector that returns logits in training; called with images alone, it returns the model's output."""

    def __init__(self, model: Detector) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, is_learning: bool = False) -> tuple[Tensor, Tensor, Tensor] | Tensor:
        """Return boxes (B, N, 4), logits (B, N, K) and cells (N, 3); or boxes with probabilities (B, N, 4 + K)."""
        if not is_learning:
            return self.model(images)
        boxes, logits = self.model.answers(images)
        return boxes, logits, self.model.cells(self.model.grid_of(images), device=images.device)


def score_losses(logits: Tensor, assignment: Assignment, *, focus: float) -> Tensor:
    """Return the quality focal loss of class logits (B, N, K), summed per image (B,)."""
    wanted = torch.zeros_like(logits).scatter_(
        2, assignment.labels[..., None], assignment.quality[..., None].to(logits.dtype)
    )
    entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    losses = (logits.sigmoid() - wanted).abs() ** focus * entropy
    is_free = assignment.is_ignored & (wanted == 0)
    return torch.where(is_free, 0.0, losses).sum(dim=(1, 2))
