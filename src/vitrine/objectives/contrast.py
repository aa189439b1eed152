"""Contrastive learning: the two views of an image must match each other, and no other image of the batch.

`MomentumContrast` is MoCo v3 (arXiv:2104.02057): a student's prediction from one view is compared with the outputs of
its own average on the other views. `SimpleContrast` is SimCLR (arXiv:2002.05709): one network, all views at once.

The other images are those of the whole batch, on all processes: the result does not depend on the number of
processes, and a batch has no micro-batches. The projections normalise over the batch for the same reason.

Shapes: B images of this process, N of all, C channels, V = 2 views, D width, O outputs.
"""

import copy
import itertools
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models import ViT
from vitrine.models.fixed import HasFixedParameters
from vitrine.models.initialisation import lecun_normal_
from vitrine.objectives.self_distillation import require_no_head, teacher_momentum
from vitrine.runtime.processes import all_rows, rank_and_count

# Of the variance over the batch, as in batch normalisation.
EPSILON = 1e-5
# The share of images whose other view is the nearest; chance is one over the number of images compared.
MATCHED = "matched"


@dataclass(frozen=True, kw_only=True)
class ContrastConfig:
    """Projection and temperature; the defaults are MoCo v3's for ViTs."""

    temperature: float = 0.2
    hidden_width: int = 4096
    output_width: int = 256
    """Width of the space in which views are compared."""
    fixed_patches: bool = True
    """Whether the patch projection keeps its initial weights: its gradients make the training of ViTs unstable."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(f"temperature must be above 0, got {self.temperature}")
        for name in ("hidden_width", "output_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


class BatchNorm(nn.Module):
    """Normalise features over the rows of a batch; it keeps no running statistics, as it is used in training only."""

    def __init__(self, width: int, *, learns: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if learns else None
        self.bias = nn.Parameter(torch.zeros(width)) if learns else None

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows (N, D) with mean 0 and variance 1 over the rows, scaled and shifted."""
        variance, mean = torch.var_mean(rows, dim=0, correction=0)
        normal = (rows - mean) * torch.rsqrt(variance + EPSILON)
        return normal if self.weight is None or self.bias is None else normal * self.weight + self.bias


class Projection(nn.Sequential):
    """An MLP with batch normalisation after every layer; the last one has no weights of its own."""

    def __init__(self, *widths: int) -> None:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths[:-1]):
            layers += [nn.Linear(before, after, bias=False), BatchNorm(after, learns=True), nn.ReLU()]
        layers += [nn.Linear(widths[-2], widths[-1], bias=False), BatchNorm(widths[-1], learns=False)]
        super().__init__(*layers)
        for layer in self:
            if isinstance(layer, nn.Linear):
                lecun_normal_(layer.weight)

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows (N, D) to outputs (N, O), in the weights' precision: statistics in bf16 are off by hundredths."""
        precision = next(self.parameters()).dtype
        with torch.autocast(rows.device.type, enabled=False):
            for layer in self:
                rows = layer(rows.to(precision))
        return rows


class AveragedEncoder(nn.Module):
    """The average of the student's backbone and projection. It has no gradients."""

    def __init__(self, vit: ViT, projection: Projection) -> None:
        super().__init__()
        self.vit, self.projection = copy.deepcopy(vit), copy.deepcopy(projection)
        self.requires_grad_(False)


class Contrast(HasFixedParameters, nn.Module):
    """A ViT with its projection; called with images alone, it returns their representation."""

    def __init__(self, vit: ViT, config: ContrastConfig, *, depth: int) -> None:
        super().__init__()
        require_no_head(vit)
        self.vit, self.config = vit, config
        self.fixed = fixed_patches(vit) if config.fixed_patches else ()
        hidden = (config.hidden_width,) * (depth - 1)
        self.projection = Projection(vit.config.width, *hidden, config.output_width)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums, from views (B, V, C, height, width).

        From whole images (B, C, height, width), return their representation (B, D).
        """
        return self.vit.embed(images) if images.ndim == 4 else self.compare(images)

    def compare(self, views: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums, from views (B, V, C, height, width)."""
        raise NotImplementedError

    def embedded(self, vit: ViT, views: Tensor) -> Tensor:
        """Return representations of the views of all processes' images: (N, V, D); in evaluation, of its own."""
        rows = vit.embed(views.flatten(0, 1)).view(*views.shape[:2], -1)
        return all_rows(rows) if self.training else rows

    def own(self, count: int) -> slice:
        """Return the places of this process's images among those of all processes."""
        rank = rank_and_count()[0] if self.training else 0
        return slice(rank * count, (rank + 1) * count)


class MomentumContrast(Contrast):
    """MoCo v3: the student predicts, from each view, its average's output on the other view."""

    def __init__(self, vit: ViT, config: ContrastConfig, *, momentum: float) -> None:
        super().__init__(vit, config, depth=3)
        self.momentum = momentum
        self.predictor = Projection(config.output_width, config.hidden_width, config.output_width)
        self.teacher = AveragedEncoder(vit, self.projection)
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None

    def train(self, mode: bool = True) -> Self:
        """Train the student; its average runs without dropout."""
        super().train(mode)
        self.teacher.eval()
        return self

    def compare(self, views: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compare the prediction from each view with the average's outputs on the other view of all images."""
        student = self.embedded(self.vit, views)
        guesses = [self.predictor(self.projection(student[:, view])) for view in (0, 1)]
        with torch.no_grad():
            rows = self.embedded(self.teacher.vit, views)
            answers = [self.teacher.projection(rows[:, view]) for view in (0, 1)]
        own, temperature = self.own(len(views)), self.config.temperature
        first, matched = nearest_loss(guesses[0][own], answers[1], own, temperature=temperature)
        second, also = nearest_loss(guesses[1][own], answers[0], own, temperature=temperature)
        # Twice the temperature keeps the size of the gradient the same whatever the temperature.
        return 2 * temperature * (first + second), {MATCHED: (matched + also).sum() / 2}

    @torch.no_grad()
    def update_teacher(self, *, step: int, total_steps: int) -> None:
        """After step `step` (from 0), move the average towards the student; its momentum rises to 1."""
        if self._pairs is None:  # listing parameters at every step takes milliseconds
            followed, own = dict(self.named_parameters()), dict(self.teacher.named_parameters())
            self._pairs = list(own.values()), [followed[name] for name in own]
        momentum = teacher_momentum(step, total_steps=total_steps, first=self.momentum)
        torch._foreach_lerp_(*self._pairs, 1 - momentum)


class SimpleContrast(Contrast):
    """SimCLR: every view must find the other view of its image among all views but itself."""

    def __init__(self, vit: ViT, config: ContrastConfig) -> None:
        super().__init__(vit, config, depth=2)

    def compare(self, views: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compare each view with all other views of all images (NT-Xent)."""
        rows = self.embedded(self.vit, views)
        outputs = self.projection(rows.transpose(0, 1).flatten(0, 1)).view(2, len(rows), -1)
        own, total = self.own(len(views)), views.new_zeros(len(views), dtype=torch.float32)
        matched = torch.zeros_like(total)
        for view, other in ((0, 1), (1, 0)):
            candidates = torch.cat([outputs[other], outputs[view]])  # its own other view comes first
            losses, hits = nearest_loss(
                outputs[view][own], candidates, own, temperature=self.config.temperature, skips_self=True
            )
            total, matched = total + losses / 2, matched + hits / 2
        return total, {MATCHED: matched.sum()}


def fixed_patches(vit: ViT) -> tuple[str, ...]:
    """Return the names of the patch projection's parameters, and freeze them."""
    vit.patch_projection.requires_grad_(False)
    return tuple(f"vit.patch_projection.{name}" for name, _ in vit.patch_projection.named_parameters())


def nearest_loss(
    queries: Tensor, keys: Tensor, own: slice, *, temperature: float, skips_self: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy (B,) of finding each query's key among all by cosine, and whether its key is nearest.

    The keys of queries (B, O) are the rows `own` of keys (N, O). With `skips_self` the second half of the keys are of
    the queries' own view, (2N, O), and a query is not compared with itself.
    """
    targets = torch.arange(own.start, own.stop, device=queries.device)
    logits = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).T / temperature
    if skips_self:
        itself = torch.arange(len(keys), device=keys.device) == (targets + len(keys) // 2)[:, None]
        logits = logits.masked_fill(itself, -torch.inf)
    return F.cross_entropy(logits, targets, reduction="none"), (logits.argmax(dim=1) == targets).float()
