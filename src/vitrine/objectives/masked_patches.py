"""Masked patch prediction as in the ViT paper (arXiv:2010.11929, section 4.6 and appendix B.1.2).

Half of the patch embeddings of every image are corrupted, exactly half (rounded), so that every image counts the
same: each of them becomes the learned [mask] embedding (80 %), the embedding of another position of the same image
(10 %) or stays (10 %). Positions are added after that, so the encoder knows where it has to guess. The loss reads the
encoder's output at corrupted positions alone.

Shapes: B images, N patches, M of them corrupted, T tokens, D width, O numbers predicted for a patch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models import ViT
from vitrine.models.dropout import RandomLayer
from vitrine.objectives.patch_targets import DOWNSIZED, TARGETS, Target, num_outputs
from vitrine.spelling import nearest

# As for position embeddings; the paper does not say how [mask] begins.
MASK_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class MaskedPatchesConfig:
    """What is hidden and what is asked for; the defaults are the paper's."""

    target: Target = "mean-color"
    corrupted: float = 0.5
    """Share of the patches; the paper found .15 slightly worse."""
    masked: float = 0.8
    """Share of the corrupted ones that become [mask]."""
    replaced: float = 0.1
    """Share of the corrupted ones that become another patch; the rest is kept."""

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigError(
                f"target must be one of {', '.join(TARGETS)}, got {self.target!r}; "
                f"nearest: {nearest(str(self.target), TARGETS)[0]}"
            )
        if not 0 < self.corrupted <= 1:
            raise ConfigError(f"corrupted must be above 0 and at most 1, got {self.corrupted}")
        if min(self.masked, self.replaced) < 0 or self.masked + self.replaced > 1:
            raise ConfigError(
                f"masked and replaced must be shares that sum to at most 1, got {self.masked} and {self.replaced}"
            )


@dataclass(frozen=True)
class Corruption:
    """Which patches are corrupted and how, each (B, M)."""

    positions: Tensor
    """Positions from 0 to N - 1, every one at most once in an image."""
    others: Tensor
    """A position of the same image for each, never the same one."""
    is_masked: Tensor
    is_replaced: Tensor


class MaskedPatches(RandomLayer):
    """A ViT with a [mask] embedding and a head that tells hidden patches from what is round them."""

    def __init__(self, vit: ViT, config: MaskedPatchesConfig) -> None:
        super().__init__()
        require_token_outputs(vit)
        self.vit, self.config = vit, config
        D, patch_size = vit.config.width, vit.config.token_stride
        self.mask_embedding = nn.Parameter(torch.empty(1, 1, D))
        outputs = num_outputs(config.target, patch_size, channels=vit.config.channels)
        self.predict = nn.Linear(D, outputs)
        nn.init.normal_(self.mask_embedding, std=MASK_STD)
        # As the authors' heads begin: every class is equally likely at first.
        nn.init.zeros_(self.predict.weight)
        nn.init.zeros_(self.predict.bias)

    def forward(
        self, images: Tensor, targets: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums worth logging; without targets the representation (B, D)."""
        if targets is None:
            return self.vit.embed(images)
        predictions, corruption = self.reconstruct(images)
        wanted = take(targets, corruption.positions)  # (B, M) or (B, M, ...)
        return patch_loss(predictions, wanted, target=self.config.target)

    def reconstruct(self, images: Tensor) -> tuple[Tensor, Corruption]:
        """Corrupt and predict: what the head says of the corrupted patches (B, M, O), and which they are."""
        patches, grid = self.vit.embed_patches(images)
        B, N, _ = patches.shape
        corruption = draw_corruption(B, N, config=self.config, device=patches.device, draw=self.draw)
        patches = corrupt(patches, corruption, mask_embedding=self.mask_embedding)
        tokens = encoded(self.vit, self.vit.assemble(patches, grid), grid)
        outputs = take(tokens[:, self.vit.num_leading_tokens :], corruption.positions)  # (B, M, D)
        return self.predict(outputs), corruption


def draw_corruption(
    num_images: int,
    num_patches: int,
    *,
    config: MaskedPatchesConfig,
    device: torch.device | str = "cpu",
    draw: Callable[..., Tensor] = torch.rand,
) -> Corruption:
    """Draw which patches are corrupted and how."""
    B, N = num_images, num_patches
    if N < 2:
        raise ConfigError("masked patch prediction needs two patches or more in an image, got 1")
    M = max(round(config.corrupted * N), 1)
    order, step, chance = torch.split(draw(B, N + 2 * M, device=device), [N, M, M], dim=1)
    positions = order.argsort(dim=1)[:, :M]
    # A step of 1 to N - 1 round the circle of positions leads to every other one with equal chance.
    others = (positions + 1 + (step * (N - 1)).long()) % N
    is_masked = chance < config.masked
    is_replaced = ~is_masked & (chance < config.masked + config.replaced)
    return Corruption(positions, others, is_masked, is_replaced)


def corrupt(patches: Tensor, corruption: Corruption, *, mask_embedding: Tensor) -> Tensor:
    """Return patch embeddings (B, N, D) with the chosen ones corrupted; another patch's is its uncorrupted one."""
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
    # One row for each colour that is asked for.
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
    """Run the encoder on z_0 and normalise every token, also where the model itself normalises after pooling."""
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
            "a model that predicts patches has no head, got one; give num_classes=None and no representation_width"
        )
