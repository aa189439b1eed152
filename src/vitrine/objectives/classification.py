"""Supervised classification: softmax, sigmoid or binary cross-entropy, one loss per image.

Shapes: B images, K classes. Targets are class numbers (B,) or rows (B, K): soft labels, or several labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.augmenting.augment import augment
from vitrine.data.loading.loader import Batch
from vitrine.errors import ConfigError
from vitrine.models import Model, ModelConfig
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

LossKind = Literal["softmax", "sigmoid", "binary"]


@register_objective
@dataclass(frozen=True, kw_only=True)
class LabelsObjective(Objective):
    """Learn the labels: the model itself is trained, and every setting of a recipe applies."""

    kind: ClassVar[str] = "labels"
    weights_prefix: ClassVar[str] = ""
    earlier_settings: ClassVar[Mapping[str, str]] = {"loss": "objective.loss"}

    loss: LossKind = "softmax"
    """`sigmoid` for several labels per image, and for the paper's pre-training on ImageNet-21k and JFT; `binary` for
    DeiT III's: every class that is in the image at all, as after mixup, counts as present."""
    logit_adjustment: float | None = None
    """In training, this times the log share of each class is added to the logits (arXiv:2007.07314): 1 weighs classes
    equally, 0 images; None is 0, or 1 where fine-tuning meets uneven classes."""

    def __post_init__(self) -> None:
        if self.loss not in get_args(LossKind):
            raise ConfigError(
                f"loss must be one of {', '.join(get_args(LossKind))}, got {self.loss!r}; "
                f"nearest: {nearest(str(self.loss), get_args(LossKind))[0]}",
                suggestions=nearest(str(self.loss), get_args(LossKind)),
            )
        if self.logit_adjustment is not None and not self.logit_adjustment >= 0:
            raise ConfigError(f"logit_adjustment must be at least 0, got {self.logit_adjustment}")
        if self.logit_adjustment and self.loss != "softmax":
            raise ConfigError("logit_adjustment needs the softmax, where classes compete")

    @property
    def needs_labels(self) -> bool:
        """This objective learns the labels."""
        return True

    @property
    def neutral_settings(self) -> Mapping[str, Any]:
        """Only label smoothing with `binary` is not supported: it would make all classes present."""
        return {"augment.label_smoothing": 0.0} if self.loss == "binary" else {}

    def for_labels(self, *, is_multi_label: bool) -> Self:
        """Choose the sigmoid for several labels per image: a softmax allows only one."""
        return replace(self, loss="sigmoid", logit_adjustment=None) if is_multi_label else self

    def check_model(self, config: ModelConfig) -> None:
        """Accept every model."""

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Return the model unchanged."""
        return model

    def prepare(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to normalised images and soft labels, augmented and mixed, and the shift of the logits.

        The shift (B, K) is the same for all images, and is omitted if there is none.
        """
        shift = self.logit_shift(context.class_counts)

        def prepare(batch: Batch) -> Parts:
            pixels, targets = augment(
                batch.images, batch.labels, batch.rows, config=context.augment, num_classes=len(context.classes),
                seed=context.seed, progress=batch.rows.step / context.total_steps,
            )  # fmt: skip
            images = context.preprocess.normalise(pixels)
            if shift is None:
                return images, targets
            return images, targets, shift.to(images.device).expand(len(images), -1)

        return prepare

    def losses(self, module: nn.Module, parts: Parts) -> Losses:
        """Return the loss of each image and the number classified correctly."""
        images, targets, *shifts = parts
        logits = module(images)
        shifted = logits + shifts[0] if shifts else logits
        return classification_loss(shifted, targets, kind=self.loss), {
            "accuracy": num_correct(logits, targets)
        }

    def logit_shift(self, counts: Sequence[int]) -> Tensor | None:
        """Return the shift (K,) that training adds to the logits, given the class counts; None without adjustment."""
        if not self.logit_adjustment:
            return None
        numbers = torch.tensor(counts, dtype=torch.float64).clamp_min(1)
        return (self.logit_adjustment * (numbers / numbers.sum()).log()).float()

    def evaluation(
        self, context: RunContext, validation: Validation
    ) -> Callable[[nn.Module], dict[str, float]]:
        """Return the function that computes loss and accuracy on the validation images."""
        return lambda module: evaluate_classes(module, validation, loss=self.loss)


def evaluate_classes(module: nn.Module, validation: Validation, *, loss: LossKind) -> dict[str, float]:
    """Return mean loss and accuracy of a classifier on the validation images."""
    logits, labels = validation.logits(module)
    losses = classification_loss(logits, labels, kind=loss)
    return {
        "loss": float(losses.double().mean()),
        "accuracy": float(num_correct(logits, labels)) / len(labels),
    }


def classification_loss(logits: Tensor, targets: Tensor, *, kind: LossKind = "softmax") -> Tensor:
    """Return the loss of each image (B,).

    The sigmoid's is summed over classes, as in the authors' code. `binary` is DeiT III's: targets are 1 where they
    are above 0, and the mean over classes is taken.
    """
    logits = logits.float()
    if kind == "softmax":
        return F.cross_entropy(logits, targets, reduction="none")
    if targets.ndim == 1:
        targets = F.one_hot(targets, logits.shape[1])
    if kind == "binary":
        targets = targets > 0
    losses = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return losses.mean(dim=1) if kind == "binary" else losses.sum(dim=1)


def num_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Count, on the device, the images whose best class is (among) the most likely of the target."""
    best = logits.argmax(dim=1)
    if targets.ndim == 1:
        return (best == targets).sum()
    reached = targets.gather(1, best[:, None])[:, 0]
    return ((reached == targets.amax(dim=1)) & (reached > 0)).sum()
