"""The objective `ibot` (arXiv:2111.07832): DINO, and the same for patches that the student does not see.

Some patches of the student's large views are replaced by a learned [mask]. For each of them the student predicts the
teacher's output on the same patch of the same view, which the teacher sees whole. Classes and patches share the
projection; their outputs have centres of their own. DINOv2 trains on the same two losses.

Shapes: B images, G = 2 large views, N patches, M of them at most hidden, D width, K prototypes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models import Model, ViT
from vitrine.models.dropout import RandomLayer
from vitrine.objectives.dino import DinoObjective
from vitrine.objectives.masked_patches import MASK_STD, require_token_outputs, take
from vitrine.objectives.objective import AfterStep, RunContext, register_objective
from vitrine.objectives.self_distillation import SelfDistillation
from vitrine.objectives.teacher import Teacher
from vitrine.runtime.processes import mean_over

# Sums of a step that move the centre of patches, not for the log.
PATCH_OUTPUTS, PATCH_SQUARES = "teacher_patch_outputs", "teacher_patch_squares"


@register_objective
@dataclass(frozen=True, kw_only=True)
class IbotObjective(DinoObjective):
    """DINO's loss across views and a loss on hidden patches; the defaults are iBOT's for ViT-S/16."""

    kind: ClassVar[str] = "ibot"
    earlier_settings: ClassVar[Mapping[str, str]] = {}

    num_prototypes: int = 8192
    hidden: tuple[float, float] = (0.1, 0.5)
    """Share of the patches that are hidden: drawn between these two for each view."""
    hidden_chance: float = 0.5
    """Share of the views that have hidden patches at all."""
    patch_weight: float = 1.0
    """Weight of the loss on patches relative to that on views."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (len(self.hidden) == 2 and 0 < self.hidden[0] <= self.hidden[1] <= 1):
            raise ConfigError(
                f"hidden must be two shares of the patches, the smaller first, got {list(self.hidden)}"
            )
        if not 0 <= self.hidden_chance <= 1:
            raise ConfigError(f"hidden_chance must be from 0 to 1, got {self.hidden_chance}")
        if not self.patch_weight >= 0:
            raise ConfigError(f"patch_weight must be 0 or more, got {self.patch_weight}")

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Add the projection, the [mask] embedding and the teacher."""
        assert isinstance(model, ViT)
        return MaskedSelfDistillation(model, self)

    def after_step(self, context: RunContext) -> AfterStep:
        """Return the function that moves teacher and both centres, the same in all processes."""
        local_batch = context.batch_size // context.processes.world_size
        move_views = super().after_step(context)

        def move(module: nn.Module, sums: dict[str, Tensor], step: int, bad: Tensor) -> None:
            assert isinstance(module, MaskedSelfDistillation)
            outputs, squares = (
                mean_over(sums.pop(name) / local_batch, context.processes)
                for name in (PATCH_OUTPUTS, PATCH_SQUARES)
            )
            module.move_center(
                module.patch_center, module.patch_variance, outputs, squares, step=step, bad=bad
            )
            move_views(module, sums, step, bad)

        return move


class MaskedSelfDistillation(SelfDistillation, RandomLayer):
    """Self-distillation with a [mask] embedding and a centre of the patches' outputs."""

    config: IbotObjective
    patch_center: Tensor
    patch_variance: Tensor

    def __init__(self, vit: ViT, config: IbotObjective) -> None:
        super().__init__(vit, config)
        require_token_outputs(vit)
        self.mask_embedding = nn.Parameter(torch.empty(1, 1, vit.config.width))
        nn.init.normal_(self.mask_embedding, std=MASK_STD)
        self.register_buffer("patch_center", torch.zeros(config.num_prototypes))
        self.register_buffer("patch_variance", torch.tensor(1 / config.bottleneck_width))

    def forward(
        self, images: Tensor, small: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums, from views (B, G, C, ...) and (B, V, C, ...).

        Without small views: the teacher's representation (B, D) of whole images (B, C, height, width).
        """
        if small is None:
            return self.teacher.vit.embed(images)
        (B, G), flat = images.shape[:2], images.flatten(0, 1)
        patches, grid = self.vit.embed_patches(flat)
        places, weights = self.hidden_patches(len(flat), patches.shape[1], device=flat.device)
        with torch.no_grad():
            whole, seen = outputs_of(self.teacher.vit, *self.teacher.vit.embed_patches(flat))
            targets = self.teacher.projection(whole).view(B, G, -1)
            patch_targets = self.teacher.projection(take(seen, places))  # (B x G, M, K)
        kept = take(patches, places)
        masked = torch.where(weights[..., None] > 0, self.mask_embedding.to(patches.dtype), kept)
        patches = patches.scatter(1, places[..., None].expand_as(masked), masked)
        pooled, guessed = outputs_of(self.vit, patches, grid)
        outputs = self.projection(pooled, self.prototype_rate).view(B, G, -1)
        losses, sums = self.compare_views(targets, outputs, small)
        predictions = self.projection(take(guessed, places), self.prototype_rate)
        of_patches, more = self.compare_patches(patch_targets, predictions, weights)
        of_patches = of_patches.view(B, G).mean(dim=1)
        total = losses + self.config.patch_weight * of_patches
        return total, {**sums, **more, "patch_loss": of_patches.detach().sum()}

    def hidden_patches(self, rows: int, count: int, *, device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw places (rows, M) of patches and their weights: 1 in the number hidden where hidden, else 0.

        M is the most that may be hidden, so that all batches have one shape.
        """
        low, high = self.config.hidden
        most = max(round(high * count), 1)
        chance, share, order = torch.split(self.draw(rows, count + 2, device=device), [1, 1, count], dim=1)
        number = ((low + (high - low) * share) * count).round().clamp(1, most)
        number = number * (chance < self.config.hidden_chance)  # (rows, 1)
        is_hidden = torch.arange(most, device=device) < number
        return order.argsort(dim=1)[:, :most], is_hidden / number.clamp(min=1)

    def compare_patches(
        self, targets: Tensor, outputs: Tensor, weights: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted cross-entropy of patches (B x G,), and sums that move the centre, per image."""
        centred = targets - self.patch_center
        gain = self.gain_at(self.patch_variance)
        probabilities = (centred * gain / self.temperature).softmax(dim=-1)
        predictions = (outputs / self.config.student_temperature).log_softmax(dim=-1)
        losses = -(probabilities * predictions).sum(dim=-1)  # (B x G, M)
        views = 2  # of an image: sums are per image
        return (weights * losses).sum(dim=1), {
            PATCH_OUTPUTS: targets.mean(dim=1).sum(dim=0) / views,
            PATCH_SQUARES: centred.square().mean(dim=(1, 2)).sum() / views,
        }


def outputs_of(vit: ViT, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the representation (B, D) and the encoded patches (B, N, D) of embedded patches."""
    tokens = vit.encode(vit.assemble(patches, grid), grid)
    every = vit.norm(tokens) if vit.config.norm_after_pooling else tokens
    return vit.represent(vit.pool(tokens)), every[:, vit.num_leading_tokens :]
