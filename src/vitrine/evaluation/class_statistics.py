"""The statistics that a classifier keeps to learn more classes later: class means and one shared covariance.

A Gaussian discriminant needs nothing else, so new classes are added from their own photos alone, and the old ones are
not forgotten: their means do not move.

Shapes: N examples, R features, K classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F

from vitrine.checkpoints.tensors import Spec
from vitrine.checkpoints.writing import write_safetensors
from vitrine.errors import CheckpointError
from vitrine.evaluation.ridge import STD_FLOOR

FILE = "class_statistics.safetensors"
# Shrinkage of the covariance towards a sphere: left-out images of Pets favour 0.4 to 0.8, so the middle.
SHRINKAGE = 0.6


@dataclass(frozen=True, kw_only=True)
class ClassStatistics:
    """Counts (K,), means (K, R) and the summed squares (R, R) of deviations from the own class's mean, in float64."""

    counts: Tensor
    means: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, *, num_classes: int) -> Self:
        """Measure features (N, R) with labels (N,)."""
        features, members = features.double(), F.one_hot(labels.long(), num_classes).double()
        counts = members.sum(dim=0)
        means = members.T @ features / counts.clamp_min(1)[:, None]
        rest = features - means[labels.long()]
        return cls(counts=counts, means=means, scatter=rest.T @ rest)

    def followed_by(self, new: "ClassStatistics") -> "ClassStatistics":
        """Return the statistics of these classes and then the new ones."""
        return ClassStatistics(
            counts=torch.cat([self.counts, new.counts]),
            means=torch.cat([self.means, new.means]),
            scatter=self.scatter + new.scatter,
        )

    def head(self, *, shrinkage: float = SHRINKAGE) -> tuple[Tensor, Tensor]:
        """Return weight (K, R) and bias (K,) of the discriminant for classes that are equally frequent."""
        total = self.counts.sum()
        middle = self.counts @ self.means / total
        offsets = self.means - middle
        within = self.scatter / (total - len(self.counts)).clamp_min(1)
        spread = (self.scatter.diagonal() + self.counts @ offsets.square()) / total
        scale = spread.sqrt() + STD_FLOOR  # as the closed form standardises features
        shape = within / scale[:, None] / scale[None, :]
        mean = shape.diagonal().mean().clamp_min(1e-9)
        shape = (1 - shrinkage) * shape + shrinkage * mean * torch.eye(len(shape), dtype=shape.dtype)
        standard = offsets / scale
        line = torch.linalg.solve(shape, standard.T).T  # (K, R), on standardised features
        bias = -(standard * line).sum(dim=1) / 2
        weight = line / scale
        return weight, bias - weight @ middle

    def write(self, file: Path) -> None:
        """Write the statistics beside a model."""
        tensors = {name: getattr(self, name).contiguous() for name in ("counts", "means", "scatter")}
        specs = {name: Spec(tuple(value.shape), value.dtype) for name, value in tensors.items()}
        write_safetensors(file, tensors.items(), specs=specs)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the statistics; refuse a damaged file."""
        try:
            with safe_open(str(file), framework="pt") as stored:
                return cls(**{name: stored.get_tensor(name) for name in ("counts", "means", "scatter")})
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from None
