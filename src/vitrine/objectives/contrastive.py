"""The objectives `moco` (MoCo v3, arXiv:2104.02057) and `simclr` (arXiv:2002.05709): contrastive learning.

Shapes: B images of C channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from vitrine.data.augmenting.multi_crop import MultiCrop, multi_crop
from vitrine.data.loading.order import Rows
from vitrine.errors import ConfigError
from vitrine.models import Model, ModelConfig, ViT
from vitrine.objectives.contrast import MATCHED, Contrast, ContrastConfig, MomentumContrast, SimpleContrast
from vitrine.objectives.objective import (
    AfterStep,
    AttentionOf,
    Objective,
    Parts,
    PartsOf,
    RunContext,
    register_objective,
)
from vitrine.objectives.teacher import Teacher

# Seed of the views that are drawn as pictures: the same at every evaluation.
PICTURE_SEED = 0
# An image counts twice: both views pass through the network.
NUM_VIEWS = 2


@dataclass(frozen=True, kw_only=True)
class ContrastiveObjective(ContrastConfig, Objective):
    """Learn to recognise an image by another view of it; the base of `moco` and `simclr`."""

    has_pictures: ClassVar[bool] = True
    collapse_advice: ClassVar[str] = "a larger batch, a lower learning rate or a longer warm-up may help"

    multi_crop: MultiCrop = field(default_factory=lambda: MultiCrop(num_local=0, global_area=(0.08, 1.0)))
    """The two views that are cut from what the recipe's `views` gives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multi_crop.num_local:
            raise ConfigError(
                f"objective.multi_crop.num_local must be 0: objective {self.kind} compares two large views"
            )

    @property
    def source_size(self) -> int | None:
        """Side of the picture that views are cut from."""
        return self.multi_crop.source_size

    @property
    def compares_images(self) -> bool:
        """A view is compared with the other images of the batch."""
        return True

    @property
    def neutral_settings(self) -> Mapping[str, Any]:
        """Micro-batches are refused too: the batch cannot be divided."""
        return {**super().neutral_settings, "training.micro_batch": None}

    def images_per_image(self, config: ModelConfig) -> float:
        """Count both views."""
        return NUM_VIEWS

    def parts(self, context: RunContext) -> PartsOf:
        """Return the function from a batch to the two views of each image, normalised: (B, 2, C, height, width)."""
        preprocess = context.preprocess

        def parts_of(pixels: Tensor, rows: Rows, seed: int) -> Parts:
            size = preprocess.size
            views, _ = multi_crop(pixels, rows, config=self.multi_crop, size=size, local_size=size, seed=seed)
            return (preprocess.normalise(views),)

        return parts_of

    def output_statistics(self, means: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the share of images whose other view was the nearest."""
        return {MATCHED: float(means[MATCHED])}

    def pictures(
        self, module: nn.Module, pixels: Tensor, rows: Rows, context: RunContext, attention_of: AttentionOf
    ) -> list[Tensor]:
        """Show originals, both views and the model's attention."""
        assert isinstance(module, Contrast)
        preprocess = context.preprocess
        (views,) = self.parts(context)(pixels.float(), rows, PICTURE_SEED)
        shown = [preprocess.denormalise(views[:, view]) for view in range(NUM_VIEWS)]
        return [pixels, *shown, attention_of(module.vit, preprocess.normalise(pixels), pixels)]


@register_objective
@dataclass(frozen=True, kw_only=True)
class MocoObjective(ContrastiveObjective):
    """Find an image in the batch by the outputs of the averaged network; the defaults are MoCo v3's for ViTs."""

    kind: ClassVar[str] = "moco"

    momentum: float = 0.99
    """Momentum of the average at the start; it rises to 1 along half a cosine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum <= 1:
            raise ConfigError(f"momentum must be from 0 to 1, got {self.momentum}")

    def forward_macs(self, macs: int, *, teacher_macs: int, visits: float) -> float:
        """Count the average, which sees both views."""
        return float(NUM_VIEWS * macs)

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Add projection, predictor and the average."""
        assert isinstance(model, ViT)
        return MomentumContrast(model, self, momentum=self.momentum)

    def after_step(self, context: RunContext) -> AfterStep:
        """Return the function that moves the average, the same in all processes."""

        def move(module: nn.Module, sums: dict[str, Tensor], step: int, bad: Tensor) -> None:
            assert isinstance(module, MomentumContrast)
            module.update_teacher(step=step, total_steps=context.total_steps)

        return move


@register_objective
@dataclass(frozen=True, kw_only=True)
class SimclrObjective(ContrastiveObjective):
    """Find each view's other view among all of the batch; SimCLR's projection and temperature."""

    kind: ClassVar[str] = "simclr"

    temperature: float = 0.1
    hidden_width: int = 2048
    output_width: int = 128
    fixed_patches: bool = False

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Add the projection."""
        assert isinstance(model, ViT)
        return SimpleContrast(model, self)
