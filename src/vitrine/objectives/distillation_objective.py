"""The objective `distillation`: run a teacher on every batch, or once on every image.

Shapes: B images, N patches, E width of the teacher.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from vitrine.data.loading.loader import Batch
from vitrine.data.loading.order import Rows
from vitrine.errors import ConfigError, TryOption
from vitrine.models import Model, ViT, ViTConfig
from vitrine.objectives.classification import evaluate_classes
from vitrine.objectives.distillation import (
    DistillationConfig,
    FeatureDistillation,
    LogitsDistillation,
    teacher_features,
    teacher_width,
)
from vitrine.objectives.objective import (
    AttentionOf,
    Losses,
    LossOf,
    Objective,
    Parts,
    PartsOf,
    RunContext,
    Validation,
    augmented,
    register_objective,
)
from vitrine.objectives.teacher import Teacher, TeacherRequest
from vitrine.runtime.devices import copy_to_device

# Features of all images are held in memory: more than this is refused.
LARGEST_BYTES = 16 << 30


@register_objective
@dataclass(frozen=True, kw_only=True)
class DistillationObjective(DistillationConfig, Objective):
    """Learn what a teacher outputs for the same images."""

    kind: ClassVar[str] = "distillation"
    has_pictures: ClassVar[bool] = True
    collapse_advice: ClassVar[str] = "check the features of the teacher itself, or try a lower learning rate"
    earlier_settings: ClassVar[Mapping[str, str]] = {"distillation": "objective"}

    @property
    def needs_labels(self) -> bool:
        """A student that learns logits has a head."""
        return self.learns != "features"

    @property
    def asks_in_advance(self) -> bool:
        """Whether the teacher sees every image before the first step."""
        return self.caches

    @property
    def teacher_request(self) -> TeacherRequest:
        """Return the teacher that the config names."""
        if self.teacher is None:
            raise ConfigError(
                "objective distillation needs a teacher",
                advice=[TryOption("teacher", "to name trained weights, such as runs/latest")],
            )
        return TeacherRequest(weights=self.teacher, size=self.teacher_size, has_head=self.needs_labels)

    def for_labels(self, *, is_multi_label: bool) -> Self:
        """Refuse several labels per image for logits, which stand for classes that exclude each other."""
        if is_multi_label and self.needs_labels:
            raise ConfigError(
                "logits are distilled between classes that exclude each other; these images have several labels; "
                "learn features instead"
            )
        return self

    def check_views(self, *, are_fixed: bool) -> None:
        """Refuse to cache the teacher's outputs if the student sees another view of the image at every epoch."""
        if self.caches and not are_fixed:
            raise ConfigError(
                "objective.caches keeps the teacher's answer for each image, which needs views that are not random; "
                "set views.crop=none, views.flip=false and no augmentation, or objective.caches=false"
            )

    def forward_macs(self, macs: int, *, teacher_macs: int, visits: float) -> float:
        """Count the teacher: once per image of the batch, or once per image of the data if its outputs are cached."""
        return teacher_macs * (min(1 / visits, 1.0) if self.caches else 1.0)

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Add the projections to the teacher's width, or take the student's own heads for logits."""
        assert isinstance(model, ViT) and teacher is not None
        if self.needs_labels:
            return LogitsDistillation(model, self)
        return FeatureDistillation(model, self, teacher_width=teacher_width(teacher.model))

    def parts(self, context: RunContext) -> PartsOf:
        """Return the function from a batch to normalised images and the teacher's features of the same pixels."""
        config, preprocess, teacher = context.model.config, context.preprocess, context.teacher
        assert isinstance(config, ViTConfig) and teacher is not None
        model = teacher.model.to(context.processes.device)

        def parts_of(pixels: Tensor, rows: Rows, seed: int) -> Parts:
            summary, patches = teacher.ask(
                pixels, lambda images: teacher_features(model, images, grid=config.grid_size)
            )
            return preprocess.normalise(pixels), summary, patches if self.patch_weight else patches[:, :0]

        return parts_of

    def prepare(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to images and the teacher's outputs: features, or logits beside the labels."""
        if self.needs_labels:
            return self.prepare_logits(context)
        if not self.caches:
            return super().prepare(context)
        features_of = self.kept_features(context)
        return lambda batch: (context.preprocess.normalise(batch.images), *features_of(batch.rows))

    def prepare_logits(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to images, labels and the teacher's input (pixels) or its cached logits."""
        teacher, device = context.teacher, context.processes.device
        assert teacher is not None
        teacher.require_classes(context.classes)
        kept = kept_answers(context, teacher.model.to(device), "logits") if self.caches else None

        def prepare(batch: Batch) -> Parts:
            pixels, targets = augmented(batch, batch.labels, context, num_classes=len(context.classes))
            asked = (
                pixels if kept is None else copy_to_device(kept[torch.from_numpy(batch.rows.indices)], device)
            )
            return context.preprocess.normalise(pixels), targets, asked

        return prepare

    def losses_in(self, context: RunContext) -> LossOf:
        """Compute the teacher's logits inside the step, on the same augmented pixels: a recorded step repeats it."""
        if not self.needs_labels or self.caches:
            return self.losses
        teacher = context.teacher
        assert teacher is not None
        model = teacher.model.to(context.processes.device)

        def losses(module: nn.Module, parts: Parts) -> Losses:
            images, targets, pixels = parts
            (logits,) = teacher.ask(pixels, lambda asked: (model(asked),))
            return self.losses(module, (images, targets, logits))

        return losses

    def kept_features(self, context: RunContext) -> Callable[[Rows], Parts]:
        """Show every training image to the teacher once; return the function from rows to its features.

        The teacher reads the files with its own preprocessing; if nothing is cached, it sees the student's pixels.
        """
        config, teacher = context.model.config, context.teacher
        assert isinstance(config, ViTConfig) and teacher is not None
        grid, width = config.grid_size, teacher_width(teacher.model)
        count = grid[0] * grid[1] if self.patch_weight else 0

        def features(images: Tensor) -> Tensor:
            summary, patches = teacher_features(teacher.model, images, grid=grid)
            return torch.cat([summary[:, None], patches[:, :count]], dim=1).flatten(1)  # (B, (1 + N) x E)

        output = f"summary and {count} patches on {grid[0]}x{grid[1]}"
        kept = kept_answers(context, features, output, bytes_per_image=(1 + count) * width * 4)

        def look_up(rows: Rows) -> Parts:
            answers = copy_to_device(kept[torch.from_numpy(rows.indices)], context.processes.device)
            answers = answers.view(len(rows.indices), 1 + count, width)
            return answers[:, 0], answers[:, 1:]

        return look_up

    def evaluation(
        self, context: RunContext, validation: Validation
    ) -> Callable[[nn.Module], dict[str, float]]:
        """Evaluate logits as a classifier, features as a representation."""
        if self.needs_labels:
            return lambda module: evaluate_classes(module, validation, loss="softmax")
        return super().evaluation(context, validation)

    def pictures(
        self, module: nn.Module, pixels: Tensor, rows: Rows, context: RunContext, attention_of: AttentionOf
    ) -> list[Tensor]:
        """Show originals, the student's attention and, if the teacher is a ViT, the teacher's."""
        assert isinstance(module, FeatureDistillation | LogitsDistillation) and context.teacher is not None
        shown = [pixels, attention_of(module.vit, context.preprocess.normalise(pixels), pixels)]
        teacher = context.teacher.model
        if isinstance(teacher, ViT):
            shown.append(
                attention_of(teacher, torch.cat(list(context.teacher.inputs(pixels.float()))), pixels)
            )
        return shown


def kept_answers(
    context: RunContext, question: Callable[[Tensor], Tensor], output: str, *, bytes_per_image: int = 0
) -> Tensor:
    """Run the teacher on every training image, or load the outputs that an earlier run cached: (N, ...)."""
    assert context.answers is not None
    needed = context.num_training_images * bytes_per_image
    if needed > LARGEST_BYTES:
        raise ConfigError(
            f"the features of {context.num_training_images:,} images take {needed / 1e9:.0f} GB, and at most "
            f"{LARGEST_BYTES / 1e9:.0f} GB are held; set objective.caches=false, or keep summaries alone with "
            "objective.patch_weight=0"
        )
    return context.answers(question, output)
