"""Distillation: a student learns the features or the logits of a teacher, with labels or without.

Features: the pooled summary (class token, or what the model pools) and patches, each through a projection of the
student, by cosine. Logits: soft (Hinton et al., arXiv:1503.02531) or hard (DeiT, arXiv:2012.12877), with the head of
the student or, if it has a distillation token, the head of that token; evaluation averages the logits of both.
The teacher is not part of these modules: its features and logits come in with the batch.

Shapes: B images, N patches of the student on a grid of GH x GW, D width of the student, E of the teacher, K classes.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models import Model, ViT
from vitrine.models.config import head_width
from vitrine.models.positions import Grid
from vitrine.objectives.classification import classification_loss, num_correct
from vitrine.spelling import nearest

Learns = Literal["features", "soft-logits", "hard-logits"]


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """The teacher, and which of its outputs are learned."""

    teacher: str | None = None
    """Weights: a run folder, a file, a hub id."""
    learns: Learns = "features"
    class_weight: float = 1.0
    """For features: weight of the cosine distance of summaries."""
    patch_weight: float = 1.0
    """For features: weight of the mean cosine distance of patches."""
    temperature: float = 3.0
    """For soft logits; the default is DeiT's."""
    label_share: float = 0.5
    """For logits: weight of the labels' loss; the rest is the teacher's. DeiT uses .5 with hard logits, .9 with
    soft ones."""
    teacher_size: int | None = None
    """Side of the teacher's images; None is the size that gives it the student's grid of patches."""
    caches: bool = False
    """Whether the teacher sees every image once, before training: only if views are not random."""

    def __post_init__(self) -> None:
        if self.learns not in get_args(Learns):
            raise ConfigError(
                f"learns must be one of {', '.join(get_args(Learns))}, got {self.learns!r}; "
                f"nearest: {nearest(str(self.learns), get_args(Learns))[0]}",
                suggestions=nearest(str(self.learns), get_args(Learns)),
            )
        if min(self.class_weight, self.patch_weight) < 0 or not self.class_weight + self.patch_weight:
            raise ConfigError(
                "class_weight and patch_weight must not be negative, and not both 0, got "
                f"{self.class_weight} and {self.patch_weight}"
            )
        if not self.temperature > 0:
            raise ConfigError(f"temperature must be above 0, got {self.temperature}")
        if not 0 <= self.label_share < 1:
            raise ConfigError(
                f"label_share must be at least 0 and below 1, got {self.label_share}; 1 would need no teacher"
            )
        if self.teacher_size is not None and self.teacher_size < 1:
            raise ConfigError(f"teacher_size must be at least 1, or null, got {self.teacher_size}")


class FeatureDistillation(nn.Module):
    """A ViT and the projections with which it predicts the features of a teacher."""

    def __init__(self, vit: ViT, config: DistillationConfig, *, teacher_width: int) -> None:
        super().__init__()
        if vit.head is not None or vit.representation is not None:
            raise ConfigError("a student that learns features must have no head; use num_classes=None")
        if not config.class_weight and vit.config.pooling == "attention":
            raise ConfigError("attention pooling is not trained with class_weight=0; use pooling=average")
        self.vit, self.config = vit, config
        D, E = vit.config.width, teacher_width
        # A layer that no loss reads would have no gradient, and several processes would wait for it forever.
        self.tell_summary = nn.Linear(D, E) if config.class_weight else None
        self.tell_patches = nn.Linear(D, E) if config.patch_weight else None

    def forward(
        self, images: Tensor, summary: Tensor | None = None, patches: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums, given the teacher's summary (B, E) and patches (B, N, E).

        Without them: the student's representation (B, D).
        """
        if summary is None or patches is None:
            return self.vit.embed(images)
        embedded, grid = self.vit.embed_patches(images)
        own_summary, own_patches = summary_and_patches(self.vit, embedded, grid)
        losses, sums = torch.zeros(len(images), device=images.device), {}
        if self.tell_summary is not None:
            cosine = F.cosine_similarity(self.tell_summary(own_summary).float(), summary.float(), dim=-1)
            losses = losses + self.config.class_weight * (1 - cosine)
            sums["summary_cosine"] = cosine.sum()
        if self.tell_patches is not None:
            predicted = self.tell_patches(own_patches).float()
            cosine = F.cosine_similarity(predicted, patches.float(), dim=-1).mean(dim=1)
            losses = losses + self.config.patch_weight * (1 - cosine)
            sums["patch_cosine"] = cosine.sum()
        return losses, sums


class LogitsDistillation(nn.Module):
    """A ViT with one head, or with one head for the labels and one for the teacher."""

    def __init__(self, vit: ViT, config: DistillationConfig) -> None:
        super().__init__()
        if vit.head is None:
            raise ConfigError("a student that learns logits needs a head; use num_classes")
        self.vit, self.config = vit, config

    def forward(
        self, images: Tensor, targets: Tensor | None = None, teacher_logits: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums, given its label and the teacher's logits (B, K).

        Without them: the logits (B, K) of the model.
        """
        if targets is None or teacher_logits is None:
            return self.vit(images)
        patches, grid = self.vit.embed_patches(images)
        tokens = self.vit.assemble(patches, grid)
        tokens = self.vit.encode(tokens, grid, num_read=self.vit.num_tokens_read)
        by_labels, by_teacher = self.vit.read_out(tokens)
        share = self.config.label_share
        losses = (1 - share) * teacher_loss(
            by_labels if by_teacher is None else by_teacher, teacher_logits, config=self.config
        )
        if share:
            losses = losses + share * classification_loss(by_labels, targets)
        elif by_teacher is not None:
            # Labels have no weight, but both heads are used in evaluation: the first learns from the teacher too.
            losses = losses + teacher_loss(by_labels, teacher_logits, config=self.config)
        logits = by_labels if by_teacher is None else (by_labels + by_teacher) / 2
        agreement = (logits.argmax(dim=1) == teacher_logits.argmax(dim=1)).sum()
        return losses, {"accuracy": num_correct(logits, targets), "agreement": agreement}


def teacher_loss(logits: Tensor, teacher_logits: Tensor, *, config: DistillationConfig) -> Tensor:
    """Return the loss (B,) of a student's logits (B, K) against the teacher's (B, K).

    Soft: T^2 x KL(teacher / T || student / T), whose gradient does not fade with the temperature T. Hard:
    cross-entropy with the class that the teacher predicts.
    """
    logits, teacher_logits = logits.float(), teacher_logits.float()
    if config.learns == "hard-logits":
        return F.cross_entropy(logits, teacher_logits.argmax(dim=1), reduction="none")
    T = config.temperature
    target, prediction = (teacher_logits / T).log_softmax(dim=1), (logits / T).log_softmax(dim=1)
    return T**2 * F.kl_div(prediction, target, log_target=True, reduction="none").sum(dim=1)


@torch.no_grad()
def teacher_features(model: Model, images: Tensor, *, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return a teacher's summary (B, E) and patches (B, N, E), resampled if its grid is not the student's."""
    if not isinstance(model, ViT):
        maps = model.last_map(images)  # (B, E, rows, columns)
        return maps.mean(dim=(2, 3)), on_grid(maps, grid)
    embedded, own = model.embed_patches(images)
    summary, patches = summary_and_patches(model, embedded, own)
    maps = patches.transpose(1, 2).reshape(len(patches), -1, *own)
    return summary, on_grid(maps, grid)


def on_grid(maps: Tensor, grid: Grid) -> Tensor:
    """Resample feature maps (B, E, rows, columns) to a grid, with antialias, as tokens (B, N, E)."""
    if tuple(maps.shape[2:]) != tuple(grid):
        maps = F.interpolate(maps.float(), size=grid, mode="bilinear", antialias=True)
    return maps.flatten(2).transpose(1, 2)


def summary_and_patches(vit: ViT, embedded: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Encode embedded patches: the pooled summary (B, D), and normalised patches (B, N, D)."""
    tokens = vit.encode(vit.assemble(embedded, grid), grid)
    patches = tokens[:, vit.num_leading_tokens :]
    return vit.pool(tokens), vit.norm(patches) if vit.config.norm_after_pooling else patches


def teacher_width(model: Model) -> int:
    """Return the width E of a teacher's features."""
    return model.config.width if isinstance(model, ViT) else head_width(model.config)
