"""Learn masks by queries: each learns one mask and its class, or "no object" (as Mask2Former and EoMT).

Per image and prediction, targets are assigned to queries so that the cost is lowest: class, binary cross-entropy and
dice at random points. The loss of the masks is computed at points where they are least certain. Pixels that count
nowhere have no weight at any point; the authors' losses take them for ground that belongs to no target.

Shapes: S predictions, B images, Q queries, K classes, M targets in a batch, up to m in an image, P points, H x W px.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.decoding.annotation import IGNORED
from vitrine.data.loading.loader import Batch
from vitrine.errors import ConfigError
from vitrine.models import Model, ModelConfig, ViTConfig
from vitrine.models.dense.config import EoMTConfig
from vitrine.models.dense.eomt import EoMT, QueryAnswers, TrainedEoMT
from vitrine.objectives.matching import assigned
from vitrine.objectives.objective import Losses, Parts, RunContext, register_objective
from vitrine.objectives.segmentation import SegmentationObjective
from vitrine.objectives.teacher import Teacher

# The least certain of three times as many random candidates fill this share of the points; the rest is random.
CANDIDATES, UNCERTAIN_SHARE = 3, 0.75


class Targets(NamedTuple):
    """The masks of a batch, those of one image next to each other."""

    image: Tensor
    """The image of each target (M,)."""
    label: Tensor
    """The class of each target (M,)."""
    counts: tuple[int, ...]
    """Targets of each image."""


@register_objective
@dataclass(frozen=True, kw_only=True)
class MaskClassificationObjective(SegmentationObjective):
    """Learn masks by the queries of an EoMT, with masked attention that is annealed away."""

    kind: ClassVar[str] = "mask-classification"
    weights_prefix: ClassVar[str] = "model."

    decoder: str = "eomt"
    num_queries: int = 100
    num_blocks: int = 3
    """Blocks that the queries pass through."""
    num_points: int = 12_544
    mask_weight: float = 5.0
    dice_weight: float = 5.0
    class_weight: float = 2.0
    no_object_weight: float = 0.1
    """Weight of the queries without a target in the loss of the classes."""

    def __post_init__(self) -> None:
        if self.decoder != "eomt":
            raise ConfigError(f"decoder must be eomt for mask classification, got {self.decoder!r}")
        if self.num_points < 4:
            raise ConfigError(f"num_points must be at least 4, got {self.num_points}")

    def dense_config(self, vit: ViTConfig, *, num_classes: int) -> ModelConfig:
        """Put queries into the last blocks of a ViT."""
        return EoMTConfig(
            vit=vit, num_classes=num_classes, num_queries=self.num_queries, num_blocks=self.num_blocks
        )

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Add masked attention, which only training has."""
        assert isinstance(model, EoMT)
        return TrainedEoMT(model, num_points=self.num_points + self.num_candidates + self.num_random)

    @property
    def num_candidates(self) -> int:
        """Number of random points from which the least certain are chosen."""
        return CANDIDATES * self.num_points

    @property
    def num_random(self) -> int:
        """Number of points of the loss that are random."""
        return self.num_points - int(UNCERTAIN_SHARE * self.num_points)

    def prepare(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to images, labels, progress (B,), and two factors per image (B,).

        The factors make means over images means over the targets, and over the weighted queries, of the whole batch.
        """
        labelled, K = self.labelled(context), len(context.classes)

        def prepare(batch: Batch) -> Parts:
            images, *labels = labelled(batch)
            num_targets = self.count_targets(labels, num_classes=K).clamp_min(1).float()
            B = len(images)
            weight = num_targets + self.no_object_weight * (B * self.num_queries - num_targets)
            ones = torch.ones(B, device=images.device)
            progress = ones * (batch.rows.step / context.total_steps)
            return images, *labels, progress, ones * B / num_targets, ones * B / weight

        return prepare

    def labelled(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function to normalised images (B, C, H, W) and their labels."""
        return super().prepare(context)

    def count_targets(self, labels: Sequence[Tensor], *, num_classes: int) -> Tensor:
        """Count the targets of a batch."""
        return present_classes(labels[0], num_classes=num_classes).sum()

    def targets_of(self, labels: Sequence[Tensor], *, num_classes: int) -> tuple[Targets, Tensor, Tensor]:
        """Return the targets of a batch, their maps (M, H, W), and which pixels of the images count (B, H, W)."""
        masks = labels[0]
        targets = targets_in(masks, num_classes=num_classes)
        return targets, masks[targets.image] == targets.label[:, None, None], masks != IGNORED

    def losses(self, module: nn.Module, parts: Parts) -> Losses:
        """Return the loss of each image, summed over the predictions."""
        images, *labels, progress, per_target, per_query = parts
        answers = module(images, progress)
        targets, maps, is_known = self.targets_of(labels, num_classes=answers.classes.shape[-1] - 1)
        with torch.autocast(images.device.type, enabled=False):
            return self.set_losses(
                answers, targets, maps.float(), is_known.float(), per_target=per_target, per_query=per_query
            )

    def set_losses(
        self,
        answers: QueryAnswers,
        targets: Targets,
        maps: Tensor,
        known: Tensor,
        *,
        per_target: Tensor,
        per_query: Tensor,
    ) -> Losses:
        """Match targets with maps (M, H, W) to queries, and return the loss of each image (B,).

        `known` is 1 where pixels count, and 0 elsewhere (B, H, W).
        """
        points = answers.points * 2 - 1  # as grid_sample counts
        weights = at_points(known[:, None], points)[:, 0]  # (B, P)
        shared = WeightedPoints(points, weights).between(0, self.num_points)
        candidates, extra = (
            WeightedPoints(points, weights).between(*ends).of(targets.image)
            for ends in (
                (self.num_points, self.num_points + self.num_candidates),
                (self.num_points + self.num_candidates, None),
            )
        )
        queries = self.matched(answers, targets, maps, shared)  # (S, M)
        S, B = answers.masks.shape[:2]
        total = answers.masks.new_zeros(B, dtype=torch.float32)
        sums = {"mask": total.clone(), "dice": total.clone(), "class": total.clone()}
        for step in range(S):
            chosen = answers.masks[step, targets.image, queries[step]].float()  # (M, h, w)
            mask, dice = self.mask_losses(chosen, maps, candidates, extra)
            wanted = torch.full(answers.classes.shape[1:3], answers.classes.shape[-1] - 1, device=maps.device)
            wanted[targets.image, queries[step]] = targets.label
            of_class = self.class_losses(answers.classes[step].float(), wanted)
            for name, values in (("mask", mask), ("dice", dice)):
                sums[name] = sums[name].index_add(0, targets.image, values * per_target[targets.image])
            sums["class"] = sums["class"] + of_class * per_query
        losses = (
            self.mask_weight * sums["mask"]
            + self.dice_weight * sums["dice"]
            + self.class_weight * sums["class"]
        )
        return losses, {f"{name}_loss": values.sum() / S for name, values in sums.items()}

    @torch.no_grad()
    def matched(
        self, answers: QueryAnswers, targets: Targets, maps: Tensor, shared: "WeightedPoints"
    ) -> Tensor:
        """Return the query of each target in each prediction (S, M)."""
        S, B = answers.masks.shape[:2]
        # The targets of each image, with empty places after the last, so that one product serves all images.
        truth = at_points(maps[:, None], shared.points[targets.image])[:, 0]  # (M, P)
        place = torch.from_numpy(np.concatenate([np.arange(count) for count in targets.counts])).to(
            maps.device
        )
        wanted = truth.new_zeros(B, max(targets.counts), truth.shape[1])
        labels = targets.label.new_zeros(B, max(targets.counts))
        wanted[targets.image, place], labels[targets.image, place] = truth, targets.label
        costs = []
        for step in range(S):
            sampled = at_points(answers.masks[step].float(), shared.points)  # (B, Q, P)
            probabilities = answers.classes[step].float().softmax(dim=-1)
            costs.append(
                self.mask_weight * cross_entropies(sampled, wanted, shared.weights)
                + self.dice_weight * dice_costs(sampled, wanted, shared.weights)
                - self.class_weight
                * probabilities.gather(2, labels[:, None].expand(-1, sampled.shape[1], -1))
            )
        # One copy to the host for all images and predictions.
        matrices = np.nan_to_num(torch.stack(costs).double().cpu().numpy(), nan=0.0, posinf=1e6)
        queries = [
            np.concatenate([assigned(own[:, :count]) for own, count in zip(one, targets.counts, strict=True)])
            for one in matrices
        ]
        return torch.from_numpy(np.stack(queries)).to(maps.device)

    def mask_losses(
        self, logits: Tensor, maps: Tensor, candidates: "WeightedPoints", extra: "WeightedPoints"
    ) -> tuple[Tensor, Tensor]:
        """Return cross-entropy and dice (M,) of mask logits (M, h, w) at points where they are least certain."""
        with torch.no_grad():
            certain = at_points(logits[:, None], candidates.points)[:, 0].abs()
            certain = certain.masked_fill(candidates.weights == 0, math.inf)
            best = (-certain).topk(self.num_points - self.num_random, dim=1).indices
            points = torch.cat(
                [candidates.points.gather(1, best[..., None].expand(-1, -1, 2)), extra.points], dim=1
            )
            weights = torch.cat([candidates.weights.gather(1, best), extra.weights], dim=1)
            wanted = at_points(maps[:, None], points)[:, 0]
        sampled = at_points(logits[:, None], points)[:, 0]  # (M, P)
        entropies = F.binary_cross_entropy_with_logits(sampled, wanted, weight=weights, reduction="none")
        probability = sampled.sigmoid() * weights
        overlap = 2 * (probability * wanted).sum(dim=1) + 1
        dice = 1 - overlap / (probability.sum(dim=1) + (wanted * weights).sum(dim=1) + 1)
        return entropies.sum(dim=1) / weights.sum(dim=1).clamp_min(1), dice

    def class_losses(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """Return the weighted sum of cross-entropies over the queries of each image (B,)."""
        losses = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")  # (B, Q)
        is_empty = wanted == logits.shape[-1] - 1
        return torch.where(is_empty, self.no_object_weight * losses, losses).sum(dim=1)


class WeightedPoints(NamedTuple):
    """Points of images or of targets, and how much each one counts."""

    points: Tensor
    """x and y from -1 to 1 (N, P, 2)."""
    weights: Tensor
    """From 0 to 1 (N, P)."""

    def between(self, first: int, last: int | None) -> "WeightedPoints":
        """Return the points from one number up to another."""
        return WeightedPoints(self.points[:, first:last], self.weights[:, first:last])

    def of(self, rows: Tensor) -> "WeightedPoints":
        """Return the points of some rows (M,)."""
        return WeightedPoints(self.points[rows], self.weights[rows])


def present_classes(masks: Tensor, *, num_classes: int) -> Tensor:
    """Return whether each class occurs in each mask (B, H, W): (B, K)."""
    present = torch.zeros(len(masks), IGNORED + 1, dtype=torch.bool, device=masks.device)
    present.scatter_(1, masks.flatten(1), True)
    return present[:, :num_classes]


def targets_in(masks: Tensor, *, num_classes: int) -> Targets:
    """Return one target per class that occurs in each mask (B, H, W)."""
    present = present_classes(masks, num_classes=num_classes)
    image, label = present.nonzero(as_tuple=True)
    return Targets(image, label, tuple(present.sum(dim=1).tolist()))


def at_points(maps: Tensor, points: Tensor) -> Tensor:
    """Sample maps (B, C, h, w) bilinearly at points (B, P, 2) from -1 to 1: (B, C, P)."""
    return F.grid_sample(maps, points[:, :, None], mode="bilinear", align_corners=False)[..., 0]


def cross_entropies(logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Return the cross-entropy of queries (B, Q, P) with targets (B, m, P) at weighted points (B, P): (B, Q, m)."""
    # softplus(-x) t + softplus(x) (1 - t) is softplus(x) - x t.
    of_none = (F.softplus(logits) * weights[:, None]).sum(dim=2)  # (B, Q)
    sums = of_none[..., None] - logits @ (wanted * weights[:, None]).mT
    return sums / weights.sum(dim=1).clamp_min(1)[:, None, None]


def dice_costs(logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Return the dice loss of queries (B, Q, P) with targets (B, m, P) at weighted points (B, P): (B, Q, m)."""
    probability, wanted = logits.sigmoid(), wanted * weights[:, None]
    overlap = 2 * probability @ wanted.mT + 1
    areas = (probability * weights[:, None]).sum(dim=2)[..., None] + wanted.sum(dim=2)[:, None]
    return 1 - overlap / (areas + 1)
