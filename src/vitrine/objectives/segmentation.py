"""Learn the class of every pixel: cross-entropy at the resolution of the crop, one loss per image.

Shapes: B images of C channels, H x W pixels, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.decoding.annotation import IGNORED, DataTask
from vitrine.data.loading.loader import Batch
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.preparing.mask_view import MaskView
from vitrine.data.preparing.training_view import TrainView
from vitrine.errors import ConfigError
from vitrine.models import Model, ModelConfig, ViTConfig
from vitrine.models.dense.config import DenseConfig, LinearSegmenterConfig, SegmenterConfig
from vitrine.models.dense.model import enlarged
from vitrine.objectives.annotated_pictures import augmented_pictures
from vitrine.objectives.objective import (
    Losses,
    Objective,
    Parts,
    RunContext,
    Validation,
    register_objective,
)
from vitrine.objectives.teacher import Teacher
from vitrine.spelling import nearest

# Settings that move, mix or hide pixels without changing the mask accordingly.
PICTURE_SETTINGS = {
    "augment.mixup": 0.0,
    "augment.cutmix": 0.0,
    "augment.label_smoothing": 0.0,
    "augment.erase": 0.0,
    "augment.num_operations": 0,
}

# A decoder by its name: from the objective, the ViT and the number of classes to the model's config.
DECODERS: dict[str, Callable[[Any, ViTConfig, int], ModelConfig]] = {
    "linear": lambda objective, vit, num_classes: LinearSegmenterConfig(
        vit=vit, num_classes=num_classes, layers=objective.layers
    ),
    "mask-transformer": lambda objective, vit, num_classes: SegmenterConfig(vit=vit, num_classes=num_classes),
}


@register_objective
@dataclass(frozen=True, kw_only=True)
class SegmentationObjective(Objective):
    """Learn masks: every pixel of a random crop is classified."""

    kind: ClassVar[str] = "segmentation"
    weights_prefix: ClassVar[str] = ""
    task: ClassVar[DataTask] = "masks"

    decoder: str = "linear"
    """Name of the decoder on the ViT's tokens: `linear` or `mask-transformer` (Segmenter)."""
    layers: tuple[int, ...] = (-1,)
    """For `linear`: blocks whose tokens it reads, negative from the end."""
    scale: tuple[float, float] = (0.5, 2.0)
    """Shorter side of the resized picture, in sides of the crop."""

    @property
    def needs_labels(self) -> bool:
        """The decoder has an output per class."""
        return True

    @property
    def metric(self) -> str:
        """Mean IoU decides."""
        return "mean_iou"

    @property
    def neutral_settings(self) -> Mapping[str, Any]:
        """Augmentation moves pixels only together with their mask."""
        return PICTURE_SETTINGS

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ConfigError(
                f"decoder must be one of {', '.join(DECODERS)}, got {self.decoder!r}; nearest: "
                f"{nearest(self.decoder, DECODERS)[0]}",
                suggestions=nearest(self.decoder, DECODERS),
            )

    def dense_config(self, vit: ViTConfig, *, num_classes: int) -> ModelConfig:
        """Put the decoder of this name on a ViT."""
        return DECODERS[self.decoder](self, vit, num_classes)

    def check_model(self, config: ModelConfig) -> None:
        """Refuse a model that does not predict every pixel."""
        if not isinstance(config, DenseConfig):
            raise ConfigError(
                "masks are learned by fine-tuning a ViT: use `finetune` with data that has masks"
            )

    def view(self, pictures: TrainView) -> AnyView:
        """Cut picture and mask together."""
        return MaskView(
            size=pictures.size, image_channels=pictures.channels, scale=self.scale, flip=pictures.flip
        )

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Return the model unchanged."""
        return model

    def prepare(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to normalised images (B, C, H, W) and masks (B, H, W)."""

        def prepare(batch: Batch) -> Parts:
            return augmented_pictures(batch, context), batch.images[:, -1].long()

        return prepare

    def losses(self, module: nn.Module, parts: Parts) -> Losses:
        """Return the mean cross-entropy over the pixels of each image, and the share of correct pixels."""
        images, masks = parts
        return pixel_losses(module(images), masks)

    def evaluation(
        self, context: RunContext, validation: Validation
    ) -> Callable[[nn.Module], dict[str, float]]:
        """Return the function that computes mean IoU and accuracies on validation pictures, each at its own size."""
        return validation.pixel_scores


def pixel_losses(scores: Tensor, masks: Tensor) -> Losses:
    """Return the loss per image (B,) of scores (B, K, rows, columns) against masks (B, H, W), 255 ignored."""
    scores = enlarged(scores, (masks.shape[1], masks.shape[2]))
    known = masks != IGNORED
    count = known.sum(dim=(1, 2)).clamp_min(1)
    losses = F.cross_entropy(scores, masks, ignore_index=IGNORED, reduction="none").sum(dim=(1, 2)) / count
    correct = ((scores.detach().argmax(dim=1) == masks) & known).sum(dim=(1, 2)) / count
    return losses, {"pixel_accuracy": correct.sum()}
