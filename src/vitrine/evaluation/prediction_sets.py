"""Sets of classes that contain the true one as often as promised: split conformal prediction (arXiv:2107.07511).

A class belongs to the set of a picture if its probability is not below that of the true class of nearly all held-out
images. If the picture comes from where the held-out images came from, the set contains the true class with at least
the promised probability, however good the model is. A class with enough held-out images has a threshold of its own,
so that the promise holds for it, too.

Shapes: M pictures, K classes, H held-out images.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError

# From this many held-out images on, a class has its own threshold. With fewer, sets grow more than they gain.
ENOUGH = 100


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """The probability that a model gives to the true class of each held-out image, with these classes."""

    probabilities: Tensor
    """(H,)."""
    labels: Tensor
    """(H,)."""

    @property
    def most_coverage(self) -> float:
        """The highest coverage that the held-out images can promise."""
        return len(self.labels) / (len(self.labels) + 1)

    def thresholds(self, coverage: float, *, num_classes: int) -> Tensor:
        """Return the least probability of a class to be in a set, by class: (K,)."""
        require_coverage(coverage)
        if coverage > self.most_coverage:
            needed = math.ceil(coverage / (1 - coverage))
            raise ConfigError(
                f"{coverage:g} needs {needed} held-out images, and this model has {len(self.labels)}; at most "
                f"{math.floor(100 * self.most_coverage) / 100:g}",
                option="coverage",
            )
        thresholds = torch.full((num_classes,), quantile(self.probabilities, coverage), dtype=torch.float64)
        for number, count in enumerate(torch.bincount(self.labels, minlength=num_classes).tolist()):
            if count >= max(ENOUGH, coverage / (1 - coverage)):
                thresholds[number] = quantile(self.probabilities[self.labels == number], coverage)
        return thresholds


def held_out_scores(probabilities: Tensor, labels: Tensor) -> HeldOutScores:
    """Keep the probability of the true class, of probabilities (H, K) and labels (H,)."""
    own = probabilities.gather(1, labels.long()[:, None])[:, 0]
    return HeldOutScores(probabilities=own, labels=labels.long())


def quantile(probabilities: Tensor, coverage: float) -> float:
    """Return the probability that the true class of a further image reaches with probability `coverage`."""
    count = len(probabilities)
    place = math.ceil((count + 1) * coverage)  # from the highest; the further image is one more
    return probabilities.double().sort(descending=True).values[place - 1].item() if place <= count else 0.0


def prediction_sets(probabilities: Tensor, thresholds: Tensor) -> NDArray[np.bool_]:
    """Return which classes are in each picture's set, by probabilities (M, K); the most likely class always is."""
    rows = probabilities.double()
    inside = rows >= thresholds
    inside[torch.arange(len(rows)), rows.argmax(dim=1)] = True
    return inside.numpy()


def require_coverage(coverage: float) -> None:
    """Refuse a coverage that is not between 0 and 1."""
    if not 0 < coverage < 1:
        raise ConfigError(f"must be between 0 and 1, got {coverage:g}; 0.95 is usual", option="coverage")
