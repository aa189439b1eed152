"""Masked patch prediction as in the ViT paper (arXiv:2010.11929, section 4.6 and appendix B.1.2).

Half of the patch embeddings of every image are corrupted, exactly half (rounded), so that every image counts the
same: each of them becomes the learned [mask] embedding (80 %), the embedding of another position of the same image
(10 %) or stays (10 %). Positions are added after that, so the encoder knows which places to predict. The loss
reads the encoder's output at corrupted positions alone.

Shapes: B images, N patches, M of them corrupted, T tokens, D width, O numbers predicted for a patch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.loading.order import Rows
from vitrine.errors import ConfigError
from vitrine.models import Model, ViT
from vitrine.models.dropout import RandomLayer
from vitrine.objectives.objective import AttentionOf, Objective, PartsOf, RunContext, register_objective
from vitrine.objectives.patch_targets import DOWNSIZED, TARGETS, Target, num_outputs, target_parts
from vitrine.objectives.reconstructions import GREY, painted, reconstructions
from vitrine.objectives.teacher import Teacher
from vitrine.spelling import nearest

# As for position embeddings; the paper does not give the initialisation of [mask].
MASK_STD = 0.02


@register_objective
@dataclass(frozen=True, kw_only=True)
class MaskedPatchesObjective(Objective):
    """Predict corrupted patches; the defaults are the paper's."""

    kind: ClassVar[str] = "masked-patches"
    has_pictures: ClassVar[bool] = True
    earlier_settings: ClassVar[Mapping[str, str]] = {"masked_patches": "objective"}

    target: Target = "mean-color"
    corrupted: float = 0.5
    """Fraction of the patches; the paper found .15 slightly worse."""
    masked: float = 0.8
    """Fraction of the corrupted patches that become [mask]."""
    replaced: float = 0.1
    """Fraction of the corrupted patches that become another patch; the rest is kept."""

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigError(
                f"target must be one of {', '.join(TARGETS)}, got {self.target!r}; "
                f"nearest: {nearest(str(self.target), TARGETS)[0]}",
                suggestions=nearest(str(self.target), TARGETS),
            )
        if not 0 < self.corrupted <= 1:
            raise ConfigError(f"corrupted must be above 0 and at most 1, got {self.corrupted}")
        if min(self.masked, self.replaced) < 0 or self.masked + self.replaced > 1:
            raise ConfigError(
                f"masked and replaced must be fractions that sum to at most 1, got {self.masked} and {self.replaced}"
            )

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Add the [mask] embedding and the head that predicts patches."""
        assert isinstance(model, ViT)
        return MaskedPatches(model, self)

    def parts(self, context: RunContext) -> PartsOf:
        """Return the function to normalised images and the targets of their patches."""
        return target_parts(context.model.config, context.preprocess, target=self.target)

    def pictures(
        self, module: nn.Module, pixels: Tensor, rows: Rows, context: RunContext, attention_of: AttentionOf
    ) -> list[Tensor]:
        """Show corrupted input, prediction, original and attention."""
        assert isinstance(module, MaskedPatches)
        images = context.preprocess.normalise(pixels)
        return [*reconstructions(module, images, pixels), attention_of(module.vit, images, pixels)]


@dataclass(frozen=True)
class Corruption:
    """Which patches are corrupted, and in which way; each tensor is (B, M)."""

    positions: Tensor
    """Positions from 0 to N - 1, each at most once per image."""
    others: Tensor
    """For each, another position of the same image."""
    is_masked: Tensor
    is_replaced: Tensor


class MaskedPatches(RandomLayer):
    """A ViT with a [mask] embedding and a head that predicts hidden patches from their surroundings."""

    def __init__(self, vit: ViT, config: MaskedPatchesObjective) -> None:
        super().__init__()
        require_token_outputs(vit)
        self.vit, self.config = vit, config
        D, patch_size = vit.config.width, vit.config.token_stride
        self.mask_embedding = nn.Parameter(torch.empty(1, 1, D))
        outputs = num_outputs(config.target, patch_size, channels=vit.config.channels)
        self.predict = nn.Linear(D, outputs)
        nn.init.normal_(self.mask_embedding, std=MASK_STD)
        # Initialised like the authors' heads: every class is equally likely at first.
        nn.init.zeros_(self.predict.weight)
        nn.init.zeros_(self.predict.bias)

    def forward(
        self, images: Tensor, targets: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums to log; without targets the representation (B, D)."""
        if targets is None:
            return self.vit.embed(images)
        predictions, corruption = self.reconstruct(images)
        hidden = take(targets, corruption.positions)  # (B, M) or (B, M, ...)
        return patch_loss(predictions, hidden, target=self.config.target)

    def reconstruct(self, images: Tensor) -> tuple[Tensor, Corruption]:
        """Corrupt and predict: outputs for the corrupted patches (B, M, O), and which they are."""
        patches, grid = self.vit.embed_patches(images)
        B, N, _ = patches.shape
        corruption = draw_corruption(B, N, config=self.config, device=patches.device, draw=self.draw)
        patches = corrupt(patches, corruption, mask_embedding=self.mask_embedding)
        tokens = encoded(self.vit, self.vit.assemble(patches, grid), grid)
        outputs = take(tokens[:, self.vit.num_leading_tokens :], corruption.positions)  # (B, M, D)
        return self.predict(outputs), corruption

    def corrupted_and_predicted(self, images: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Paint [mask] grey and replaced patches as their replacement; and all of them as the head predicts."""
        outputs, corruption = self.reconstruct(images)
        own = take(patches, corruption.positions)  # (B, M, C x P x Q)
        seen = torch.where(corruption.is_replaced[..., None], take(patches, corruption.others), own)
        seen = torch.where(corruption.is_masked[..., None], torch.full_like(own, GREY), seen)
        config = self.vit.config
        predicted = painted(
            outputs.float(), self.config.target, config.token_stride, channels=config.channels
        )
        where = corruption.positions[..., None].expand_as(own)
        return patches.scatter(1, where, seen), patches.scatter(1, where, predicted)


def draw_corruption(
    num_images: int,
    num_patches: int,
    *,
    config: MaskedPatchesObjective,
    device: torch.device | str = "cpu",
    draw: Callable[..., Tensor] = torch.rand,
) -> Corruption:
    """Draw which patches are corrupted, and in which way."""
    B, N = num_images, num_patches
    if N < 2:
        raise ConfigError("masked patch prediction needs at least 2 patches per image, got 1")
    M = max(round(config.corrupted * N), 1)
    order, step, chance = torch.split(draw(B, N + 2 * M, device=device), [N, M, M], dim=1)
    positions = order.argsort(dim=1)[:, :M]
    # A cyclic shift by 1 to N - 1 reaches every other position with equal probability.
    others = (positions + 1 + (step * (N - 1)).long()) % N
    is_masked = chance < config.masked
    is_replaced = ~is_masked & (chance < config.masked + config.replaced)
    return Corruption(positions, others, is_masked, is_replaced)


def corrupt(patches: Tensor, corruption: Corruption, *, mask_embedding: Tensor) -> Tensor:
    """Return patch embeddings (B, N, D), the chosen ones corrupted; a replacement is always an uncorrupted one."""
    where = corruption.positions
    chosen = take(patches, where)  # (B, M, D)
    chosen = torch.where(corruption.is_replaced[..., None], take(patches, corruption.others), chosen)
    chosen = torch.where(corruption.is_masked[..., None], mask_embedding.to(patches.dtype), chosen)
    return patches.scatter(1, where[..., None].expand_as(chosen), chosen)


def patch_loss(predictions: Tensor, targets: Tensor, *, target: Target) -> tuple[Tensor, dict[str, Tensor]]:
    """Return each image's mean over its corrupted patches (B,): cross-entropy, or squares of pixels from -1 to 1."""
    B = len(predictions)
    predictions = predictions.float()
    if target == "pixels":
        return (predictions - targets).square().flatten(1).mean(dim=1), {}
    count = DOWNSIZED**2 if target == "downsized-colors" else 1
    # One row per predicted colour.
    logits = predictions.reshape(-1, predictions.shape[-1] // count)
    classes = targets.reshape(-1)
    losses = F.cross_entropy(logits, classes, reduction="none").view(B, -1).mean(dim=1)
    right = (logits.argmax(dim=1) == classes).float().view(B, -1).mean(dim=1)
    return losses, {"patch_accuracy": right.sum()}


def take(rows: Tensor, positions: Tensor) -> Tensor:
    """Pick rows (B, N, ...) by position (B, M): (B, M, ...)."""
    index = positions.view(*positions.shape, *(1,) * (rows.ndim - 2)).expand(
        *positions.shape, *rows.shape[2:]
    )
    return rows.gather(1, index)


def encoded(vit: ViT, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Run the encoder on z_0 and normalise every token, even if the model itself normalises after pooling."""
    tokens = vit.encode(tokens, grid)
    return vit.norm(tokens) if vit.config.norm_after_pooling else tokens


def require_token_outputs(vit: ViT) -> None:
    """Refuse a model with parts that a loss on patches cannot train."""
    if vit.config.pooling == "attention":
        raise ConfigError(
            "attention pooling is not trained by predicting patches; use pooling=class_token or average"
        )
    if vit.head is not None or vit.representation is not None:
        raise ConfigError(
            "a model that predicts patches must have no head; use num_classes=None and no representation_width"
        )
