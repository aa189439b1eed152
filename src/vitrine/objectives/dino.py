"""The objective `dino`: self-distillation across views of an image (arXiv:2104.14294).

Shapes: B images of C channels, K prototypes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.augmenting.multi_crop import MultiCrop, multi_crop, small_view_size
from vitrine.data.loading.order import Rows
from vitrine.models import Model, ModelConfig, ViT, ViTConfig
from vitrine.objectives.objective import (
    AfterStep,
    AttentionOf,
    Objective,
    Parts,
    PartsOf,
    RunContext,
    register_objective,
)
from vitrine.objectives.self_distillation import (
    OUTPUTS,
    PROBABILITIES,
    SQUARES,
    SelfDistillation,
    SelfDistillationConfig,
)
from vitrine.objectives.teacher import Teacher
from vitrine.runtime.processes import mean_over

# Seed of the views that are drawn as pictures: the same at every evaluation.
PICTURE_SEED = 0
# Small views shown per picture.
SMALL_VIEWS_SHOWN = 2


@register_objective
@dataclass(frozen=True, kw_only=True)
class DinoObjective(SelfDistillationConfig, Objective):
    """Learn from the network's own average, across views; the defaults are DINO's for ViT-S/16."""

    kind: ClassVar[str] = "dino"
    weights_prefix: ClassVar[str] = "teacher.vit."
    has_pictures: ClassVar[bool] = True
    collapse_advice: ClassVar[str] = (
        "a lower objective.teacher_temperature, a lower learning rate or a larger batch may help"
    )
    earlier_settings: ClassVar[Mapping[str, str]] = {
        "self_distillation": "objective",
        "multi_crop": "objective.multi_crop",
    }

    multi_crop: MultiCrop = field(default_factory=MultiCrop)
    """The views that are cut from what the recipe's `views` gives."""

    @property
    def source_size(self) -> int | None:
        """Side of the picture that views are cut from."""
        return self.multi_crop.source_size

    def small_view_size(self, config: ViTConfig) -> tuple[int, int]:
        """Return height and width of a small view, in whole patches."""
        return small_view_size(config.grid_size, config.token_stride, wanted=self.multi_crop.local_size)

    def check_model(self, config: ModelConfig) -> None:
        """Refuse a model without patches, or one whose patches do not tile the small views."""
        super().check_model(config)
        assert isinstance(config, ViTConfig)
        self.small_view_size(config)

    def images_per_image(self, config: ModelConfig) -> float:
        """Count the two large views and the small ones by their area."""
        assert isinstance(config, ViTConfig)
        small = math.prod(self.small_view_size(config))
        return 2 + self.multi_crop.num_local * small / math.prod(config.image_size)

    def forward_macs(self, macs: int, *, teacher_macs: int, visits: float) -> float:
        """Count the teacher, which sees the two large views."""
        return 2.0 * macs

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Add the projection and the teacher that averages both."""
        assert isinstance(model, ViT)
        return SelfDistillation(model, self)

    def parts(self, context: RunContext) -> PartsOf:
        """Return the function from a batch to large and small views, normalised."""
        config, preprocess = context.model.config, context.preprocess
        assert isinstance(config, ViTConfig)
        small = self.small_view_size(config)

        def parts_of(pixels: Tensor, rows: Rows, seed: int) -> Parts:
            views = multi_crop(
                pixels, rows, config=self.multi_crop, size=preprocess.size, local_size=small, seed=seed
            )
            return tuple(preprocess.normalise(view) for view in views)

        return parts_of

    def after_step(self, context: RunContext) -> AfterStep:
        """Return the function that moves teacher and centre, the same in all processes."""
        local_batch = context.batch_size // context.processes.world_size

        def move(module: nn.Module, sums: dict[str, Tensor], step: int, bad: Tensor) -> None:
            assert isinstance(module, SelfDistillation)
            outputs, squares = (
                mean_over(sums.pop(name) / local_batch, context.processes) for name in (OUTPUTS, SQUARES)
            )
            del sums[PROBABILITIES]
            module.update_teacher(outputs, squares, step=step, total_steps=context.total_steps, bad=bad)

        return move

    def output_statistics(self, means: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the entropy of the teacher's outputs, and how well they distinguish images."""
        entropy = float(means["teacher_entropy"])
        return {
            "teacher_entropy": entropy,
            "output_information": output_information(means[PROBABILITIES], entropy),
        }

    def num_outputs(self, num_images: int) -> int:
        """Return the number of prototypes, or of images if there are fewer."""
        return min(self.num_prototypes, num_images)

    def pictures(
        self, module: nn.Module, pixels: Tensor, rows: Rows, context: RunContext, attention_of: AttentionOf
    ) -> list[Tensor]:
        """Show originals, large views, small views and the teacher's attention."""
        assert isinstance(module, SelfDistillation)
        preprocess = context.preprocess
        large, small = self.parts(context)(pixels.float(), rows, PICTURE_SEED)
        views = [preprocess.denormalise(large[:, view]) for view in range(large.shape[1])]
        for view in range(small.shape[1])[:SMALL_VIEWS_SHOWN]:
            # Enlarged without smoothing, so that their own pixels can be seen.
            enlarged = F.interpolate(preprocess.denormalise(small[:, view]), size=preprocess.size)
            views.append(enlarged)
        attention = attention_of(module.teacher.vit, preprocess.normalise(pixels), pixels)
        return [pixels, *views, attention]


def output_information(mean_probabilities: Tensor, mean_entropy: float) -> float:
    """Return the information, in nats, that outputs have about their image: entropy of their mean (K,) minus their
    mean entropy.

    It is 0 exactly if all images have the same output, whether one prototype or all of them equally likely.
    """
    shares = mean_probabilities.double()
    overall = -torch.special.xlogy(shares, shares).sum()
    return max(float(overall) - mean_entropy, 0.0)
