"""Learn masks of objects by queries: the loss of mask classification, with one target per object.

Shapes: B images of C channels, M places for objects, P planes of bits, H x W pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from vitrine.data.decoding.annotation import DataTask
from vitrine.data.loading.loader import Batch
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.preparing.instance_view import InstanceView, instances_in, masks_of
from vitrine.data.preparing.training_view import TrainView
from vitrine.errors import ConfigError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.dense.config import InstanceEoMTConfig
from vitrine.objectives.annotated_pictures import augmented_pictures, object_evaluation
from vitrine.objectives.mask_classification import MaskClassificationObjective, Targets
from vitrine.objectives.objective import Parts, RunContext, Validation, register_objective


@register_objective
@dataclass(frozen=True, kw_only=True)
class InstanceObjective(MaskClassificationObjective):
    """Learn masks of objects by the queries of an EoMT, with masked attention that is annealed away."""

    kind: ClassVar[str] = "instance-segmentation"
    task: ClassVar[DataTask] = "instances"

    scale: tuple[float, float] = (0.5, 1.5)
    """Shorter side of the resized picture, in sides of the crop."""
    most_objects: int = 100
    """Most objects in a picture."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.most_objects <= self.num_queries:
            raise ConfigError(
                f"most_objects must be from 1 to num_queries, got {self.most_objects} and {self.num_queries}"
            )

    @property
    def metric(self) -> str:
        """COCO's average precision selects the best weights."""
        return "AP"

    def dense_config(self, vit: ViTConfig, *, num_classes: int) -> ModelConfig:
        """Put queries into the last blocks of a ViT."""
        return InstanceEoMTConfig(
            vit=vit, num_classes=num_classes, num_queries=self.num_queries, num_blocks=self.num_blocks
        )

    def check_model(self, config: ModelConfig) -> None:
        """Refuse a model that does not predict masks of objects."""
        if not isinstance(config, InstanceEoMTConfig):
            raise ConfigError(
                "masks of objects are learned by fine-tuning a ViT: use `finetune` with data that has them"
            )

    def view(self, pictures: TrainView) -> AnyView:
        """Cut a picture with the masks of its objects."""
        return InstanceView(
            size=pictures.size, image_channels=pictures.channels, scale=self.scale, flip=pictures.flip,
            most_objects=self.most_objects,
        )  # fmt: skip

    def labelled(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to images (B, C, H, W), classes (B, M), masks (B, P, H, W) and pixels that count."""

        def labelled(batch: Batch) -> Parts:
            channels = context.preprocess.channels
            objects = instances_in(batch.images, image_channels=channels, most_objects=self.most_objects)
            return augmented_pictures(batch, context), *objects

        return labelled

    def count_targets(self, labels: Sequence[Tensor], *, num_classes: int) -> Tensor:
        """Count the objects of a batch."""
        return (labels[0] >= 0).sum()

    def targets_of(self, labels: Sequence[Tensor], *, num_classes: int) -> tuple[Targets, Tensor, Tensor]:
        """Return one target per object, their masks (M, H, W), and which pixels count (B, H, W)."""
        classes, planes, is_known = labels
        is_object = classes >= 0
        image, place = is_object.nonzero(as_tuple=True)
        targets = Targets(image, classes[image, place], tuple(is_object.sum(dim=1).tolist()))
        return targets, masks_of(planes, image, place), is_known

    def evaluation(
        self, context: RunContext, validation: Validation
    ) -> Callable[[nn.Module], dict[str, float]]:
        """Return the function that computes COCO's metrics on the validation pictures, each at its own size."""
        return object_evaluation(context, validation)
