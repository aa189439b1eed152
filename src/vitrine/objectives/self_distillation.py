"""Self-distillation without labels (DINO, arXiv:2104.14294): a student predicts the output of its own average.

The teacher is an exponential average of the student and sees two large views of an image; the student sees these and
several small ones, and predicts from each the teacher's output for another. The teacher's outputs are centred, so
that no prototype always wins, and sharpened, so that not all are equally likely: either alone lets both collapse.

Shapes: B images of C channels, G = 2 large views, V small ones, D width, K prototypes.
"""

import copy
import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models import ViT
from vitrine.models.initialisation import lecun_normal_

# Smallest share of the variance of independent directions: outputs are scaled by at most 100.
LEAST_VARIANCE = 1e-4
# Sums of a step for `update_teacher`, not for the log.
OUTPUTS, SQUARES, PROBABILITIES = "teacher_outputs", "teacher_squares", "teacher_probabilities"


@dataclass(frozen=True, kw_only=True)
class SelfDistillationConfig:
    """Projection, temperatures and the teacher's momentum; the defaults are DINO's for ViT-S/16."""

    num_prototypes: int = 65_536
    """Outputs of the projection; a few thousand are enough for tens of thousands of images."""
    hidden_width: int = 2048
    bottleneck_width: int = 256
    student_temperature: float = 0.1
    teacher_temperature: float = 0.07
    first_teacher_temperature: float = 0.04
    temperature_warmup: float = 0.1
    """Fraction of the run over which the teacher's temperature rises linearly from the first to the last."""
    momentum: float = 0.996
    """Initial decay of the teacher's average; it rises to 1 along half a cosine. Use .9995 for a batch of 256."""
    centers: bool = True
    scales: bool = True
    """Whether to scale up outputs that are closer together than independent directions; DINO does not."""
    center_momentum: float = 0.9
    prototypes_wait: float = 0.01
    """Fraction of the run, at its start, in which the last layer is frozen."""

    def __post_init__(self) -> None:
        for name in ("num_prototypes", "hidden_width", "bottleneck_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("student_temperature", "teacher_temperature", "first_teacher_temperature"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("temperature_warmup", "momentum", "center_momentum", "prototypes_wait"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be from 0 to 1, got {getattr(self, name)}")


class Projection(nn.Module):
    """Map representations (B, D) to outputs (B, K): an MLP, then cosines with prototypes of unit length."""

    def __init__(self, width: int, config: SelfDistillationConfig) -> None:
        super().__init__()
        hidden = config.hidden_width
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, config.bottleneck_width),
        )  # fmt: skip
        # Prototypes are normalised at every use, so that none can win by growing.
        self.prototypes = nn.Linear(config.bottleneck_width, config.num_prototypes, bias=False)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                # DINO's .02 at its own width of 2048; in narrower layers it would shrink activations, and the
                # normalisation after them would produce gradients in the hundreds.
                lecun_normal_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, representations: Tensor, rate: Tensor | None = None) -> Tensor:
        """Return cosines from -1 to 1 (B, K); `rate` multiplies the prototypes' gradient."""
        prototypes = self.prototypes.weight
        if rate is not None:
            prototypes = prototypes.detach() + rate * (prototypes - prototypes.detach())
        outputs = self.mlp(representations)
        # A cosine in bf16 is off by up to .004, which a temperature of .04 turns into a tenth of a logit.
        with torch.autocast(outputs.device.type, enabled=False):
            return F.linear(F.normalize(outputs.float(), dim=-1), F.normalize(prototypes.float(), dim=-1))


class AveragedTeacher(nn.Module):
    """The teacher: the average of the student's backbone and projection. It has no gradients."""

    def __init__(self, vit: ViT, projection: Projection) -> None:
        super().__init__()
        self.vit, self.projection = copy.deepcopy(vit), copy.deepcopy(projection)
        self.requires_grad_(False)


class SelfDistillation(nn.Module):
    """A ViT with its projection, and the teacher that averages both; its buffers are part of the run's state."""

    center: Tensor
    variance: Tensor
    temperature: Tensor
    prototype_rate: Tensor

    def __init__(self, vit: ViT, config: SelfDistillationConfig) -> None:
        super().__init__()
        require_no_head(vit)
        self.vit, self.config = vit, config
        self.projection = Projection(vit.config.width, config)
        self.teacher = AveragedTeacher(vit, self.projection)
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None
        self.register_buffer("center", torch.zeros(config.num_prototypes))
        self.register_buffer("variance", torch.tensor(1 / config.bottleneck_width))
        self.register_buffer(
            "temperature", torch.tensor(teacher_temperature(0, total_steps=1, config=config))
        )
        self.register_buffer("prototype_rate", torch.tensor(float(config.prototypes_wait == 0)))

    def train(self, mode: bool = True) -> Self:
        """Train the student; the teacher runs without dropout, as it will be used."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(
        self, images: Tensor, small: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums, from views (B, G, C, ...) and (B, V, C, ...).

        Without small views: the teacher's representation (B, D) of whole images (B, C, height, width).
        """
        if small is None:
            return self.teacher.vit.embed(images)
        B, G = images.shape[:2]
        with torch.no_grad():
            targets = self.teacher.projection(self.teacher.vit.embed(images.flatten(0, 1)))
        outputs = self.projection(self.vit.embed(images.flatten(0, 1)), self.prototype_rate)
        return self.compare_views(targets.view(B, G, -1), outputs.view(B, G, -1), small)

    def compare_views(
        self, targets: Tensor, outputs: Tensor, small: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and sums, from both networks' outputs on large views (B, G, K)."""
        if small.shape[1]:
            of_small = self.projection(self.vit.embed(small.flatten(0, 1)), self.prototype_rate)
            outputs = torch.cat([outputs, of_small.view(*small.shape[:2], -1)], dim=1)
        centred = targets - self.center
        probabilities = (centred * self.gain() / self.temperature).softmax(dim=-1)  # (B, G, K)
        predictions = (outputs / self.config.student_temperature).log_softmax(dim=-1)  # (B, G + V, K)
        entropy = -torch.special.xlogy(probabilities, probabilities).sum(dim=-1)  # (B, G)
        return cross_view_entropy(probabilities, predictions), {
            "teacher_entropy": entropy.mean(dim=1).sum(),
            OUTPUTS: targets.mean(dim=1).sum(dim=0),
            SQUARES: centred.square().mean(dim=(1, 2)).sum(),
            PROBABILITIES: probabilities.mean(dim=1).sum(dim=0),
        }

    def gain(self) -> Tensor:
        """Return the factor on centred outputs, 1 or more.

        Cosines of independent directions in d dimensions have deviation d^-1/2. The features of a fresh ViT point
        almost the same way for all images, so their centred outputs are much closer together, a temperature of .04
        leaves them almost uniform, and with small batches both models collapse there (tests show it).
        """
        return self.gain_at(self.variance)

    def gain_at(self, variance: Tensor) -> Tensor:
        """Return the factor on outputs with this variance around the centre."""
        if not self.config.scales:
            return torch.ones_like(variance)
        return (variance * self.config.bottleneck_width).clamp(LEAST_VARIANCE, 1).rsqrt()

    @torch.no_grad()
    def update_teacher(
        self, outputs: Tensor, squares: Tensor, *, step: int, total_steps: int, bad: Tensor
    ) -> None:
        """After step `step` (from 0), move teacher, centre and variance.

        `outputs` (K,) is the mean of the teacher's outputs over the batch, `squares` () of their squared distance
        from the centre: while the centre lags behind, the gain must not amplify its error. If the flag `bad` is set
        they are unchanged, like the student, so that they never contain NaN or infinity.
        """
        momentum = teacher_momentum(step, total_steps=total_steps, first=self.config.momentum)
        if self._pairs is None:  # listing parameters at every step takes milliseconds
            followed, own = dict(self.named_parameters()), dict(self.teacher.named_parameters())
            self._pairs = list(own.values()), [followed[name] for name in own]
        torch._foreach_lerp_(*self._pairs, 1 - momentum)
        self.move_center(self.center, self.variance, outputs, squares, step=step, bad=bad)
        self.temperature.fill_(teacher_temperature(step + 1, total_steps=total_steps, config=self.config))
        self.prototype_rate.fill_(float(step + 1 >= self.config.prototypes_wait * total_steps))

    def move_center(
        self, center: Tensor, variance: Tensor, outputs: Tensor, squares: Tensor, *, step: int, bad: Tensor
    ) -> None:
        """Move a centre (K,) and the variance around it () towards those of a batch, in place."""
        share = 1 - self.config.center_momentum
        if self.config.centers:
            # The first mean replaces the initial centre.
            moved = center.lerp(outputs.to(center.dtype), share if step else 1.0)
            center.copy_(torch.where(bad > 0, center, moved))
        moved = variance.lerp(squares.to(variance.dtype), share)
        variance.copy_(torch.where(bad > 0, variance, moved))


def cross_view_entropy(probabilities: Tensor, predictions: Tensor) -> Tensor:
    """Return the mean cross-entropy (B,) of probabilities (B, G, K) and log-predictions (B, G + V, K) of other views.

    The sum over all pairs is a product of sums; the pairs of a view with itself are subtracted.
    """
    G, views = probabilities.shape[1], predictions.shape[1]
    every = (probabilities.sum(dim=1) * predictions.sum(dim=1)).sum(dim=-1)
    own = (probabilities * predictions[:, :G]).sum(dim=(1, 2))
    return (own - every) / (G * views - G)


def teacher_momentum(step: int, *, total_steps: int, first: float) -> float:
    """Return the momentum of the teacher after `step` (from 0): half a cosine from `first` to 1."""
    return 1 - (1 - first) * (1 + math.cos(math.pi * step / total_steps)) / 2


def teacher_temperature(step: int, *, total_steps: int, config: SelfDistillationConfig) -> float:
    """Return the teacher's temperature at `step` (from 0): linear from the first one to the last, then constant."""
    warmup = config.temperature_warmup * total_steps
    progress = min(step / warmup, 1.0) if warmup else 1.0
    first, last = config.first_teacher_temperature, config.teacher_temperature
    return first + (last - first) * progress


def require_no_head(vit: ViT) -> None:
    """Refuse a model with a head, which no loss would train."""
    if vit.head is not None or vit.representation is not None:
        raise ConfigError(
            "self-distillation needs a model without a head; use num_classes=None and no representation_width"
        )
