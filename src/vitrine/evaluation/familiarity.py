"""Whether a picture is like the training images at all: a distance of features, and a threshold from held-out images.

The distance is the relative Mahalanobis distance (arXiv:2106.09022): to the nearest class under the covariance within
classes, less the distance to all training images under their covariance.

Shapes: N training images, M pictures, D features, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Added to the covariance, relative to its mean diagonal: keeps it invertible with fewer images than features.
SHRINKAGE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Familiarity:
    """Class means and whitening matrices of the training images, in float64."""

    means: Tensor
    """(K, D)."""
    centre: Tensor
    """(D,), the mean of all training images."""
    within: Tensor
    """(D, D): features times it have the identity as covariance within classes."""
    whole: Tensor
    """(D, D): features times it have the identity as covariance over all images."""

    def distances(self, features: Tensor) -> Tensor:
        """Return how unfamiliar each row (M, D) is: (M,), higher for pictures unlike the training images."""
        rows = features.double()
        own = torch.cdist(rows @ self.within, self.means @ self.within).square().amin(1)
        background = ((rows - self.centre) @ self.whole).square().sum(1)
        return own - background


def fit_familiarity(features: Tensor, labels: Tensor, *, num_classes: int) -> Familiarity:
    """Fit class means and covariances on features (N, D) and labels (N,)."""
    rows = features.double()
    means = torch.stack([rows[labels == k].mean(0) for k in range(num_classes)])
    centre = rows.mean(0)
    return Familiarity(
        means=means, centre=centre, within=_whitening(rows - means[labels]), whole=_whitening(rows - centre)
    )


def area_under_curve(familiar: Tensor, unfamiliar: Tensor) -> float:
    """Return how often an unfamiliar picture (of U) has a greater distance than a familiar one (of F); ties count half."""
    ordered = familiar.sort().values
    below = torch.searchsorted(ordered, unfamiliar, side="left").double()
    up_to = torch.searchsorted(ordered, unfamiliar, side="right").double()
    return ((below + up_to) / (2 * len(ordered))).mean().item()


def _whitening(centred: Tensor) -> Tensor:
    covariance = centred.T @ centred / len(centred)
    shrunk = covariance + SHRINKAGE * covariance.diagonal().mean() * torch.eye(len(covariance))
    values, vectors = torch.linalg.eigh(shrunk)
    return vectors / values.sqrt()
