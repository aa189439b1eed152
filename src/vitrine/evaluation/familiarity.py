"""Whether a picture is like the training images at all: a distance of features, and a threshold from held-out images.

The distance is the relative Mahalanobis distance (arXiv:2106.09022): to the nearest class under the covariance within
classes, less the distance to all training images under their covariance. It is the best of seven ways that were
compared (docs/experiments.md). Directions in which training images vary but classes do not differ cancel: they make a
picture neither familiar nor strange.

Shapes: N training images, M pictures, D features, K classes, H held-out images.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# Share of the covariance that is replaced by a sphere: few images do not show every direction. Measured on 4, 10 and
# 40 photos per breed of Pets (docs/experiments.md).
SHRINKAGE, SHRINKAGE_OF_FEW = 0.001, 0.3
# Below this many images per feature, images count as few.
FEW_PER_FEATURE = 2
# Share of held-out images that pass as familiar.
PASSED = 0.95
# With fewer held-out images, no threshold marks as few as 1 in 20 pictures of the classes.
LEAST_HELD_OUT = round(1 / (1 - PASSED)) - 1
# Without held-out images, the training images are divided into this many parts, which are left out in turn.
FOLDS = 5
MOST_HELD_OUT = 2000


@dataclass(frozen=True, kw_only=True)
class ClassDistance:
    """Means of the classes and whitening matrices of the training images."""

    means: Tensor
    """(K, D), of the classes that have images."""
    centre: Tensor
    """(D,), the mean of all training images."""
    within: Tensor
    """(D, D): features times it have the identity as covariance within classes."""
    whole: Tensor
    """(D, D): features times it have the identity as covariance over all images."""

    def __call__(self, features: Tensor) -> Tensor:
        """Return how far each row (M, D) is from the training images: (M,), in float64."""
        rows = features.double()
        own = torch.cdist(rows @ self.within, self.means @ self.within).square().amin(dim=1)
        background = ((rows - self.centre) @ self.whole).square().sum(dim=1)
        return own - background


@dataclass(frozen=True, kw_only=True)
class Familiarity:
    """A distance, and the distances of images that it was not fitted on."""

    distance: ClassDistance
    held_out: Tensor
    """(H,), sorted."""

    @cached_property
    def threshold(self) -> float:
        """The distance that 95 % of held-out images do not exceed; of few images, the greatest."""
        place = min(math.ceil((len(self.held_out) + 1) * PASSED), len(self.held_out))
        return self.held_out[place - 1].item()

    @property
    def false_alarms(self) -> float:
        """The expected share of pictures of the classes that are marked by mistake."""
        return false_alarms(len(self.held_out))

    def shares(self, distances: Tensor) -> Tensor:
        """Return the share of held-out images that are at least as far, for each distance (M,): 0 to 1."""
        nearer = torch.searchsorted(self.held_out, distances.to(self.held_out.dtype), side="left")
        return 1 - nearer.double() / len(self.held_out)


def false_alarms(num_held_out: int) -> float:
    """Return the share of pictures of the classes that a threshold marks: 5 %, more with few held-out images.

    A new picture is as likely as each of H held-out ones to be the farthest of H + 1.
    """
    return max(1 - PASSED, 1 / (num_held_out + 1))


def fit_distance(features: Tensor, labels: Tensor, *, shrinkage: float | None = None) -> ClassDistance:
    """Fit means and covariances to features (N, D) and labels (N,); few images are shrunk more."""
    rows = features.double()
    share = usual_shrinkage(*rows.shape) if shrinkage is None else shrinkage
    present, numbers = torch.unique(labels, return_inverse=True)
    means = torch.stack([rows[numbers == k].mean(dim=0) for k in range(len(present))])
    centre = rows.mean(dim=0)
    return ClassDistance(
        means=means,
        centre=centre,
        within=_whitening(rows - means[numbers], share),
        whole=_whitening(rows - centre, share),
    )


def fit_familiarity(
    features: Tensor,
    labels: Tensor,
    *,
    held_out: Tensor | None = None,
    distances: Tensor | None = None,
    seed: int = 0,
) -> Familiarity:
    """Fit a distance on training features (N, D), and measure it on those of held-out images (H, D).

    Without held-out images, each fifth of the training images is measured by a distance of the others. `distances`
    (H,) of held-out images may be known already.
    """
    distance = fit_distance(features, labels)
    if distances is not None:
        measured = distances
    elif held_out is None or len(held_out) == 0:
        measured = _out_of_fold(features, labels, seed=seed)
    else:
        measured = distance(held_out)
    ordered = measured.sort().values
    if len(ordered) > MOST_HELD_OUT:
        ordered = torch.quantile(ordered, torch.linspace(0, 1, MOST_HELD_OUT, dtype=ordered.dtype))
    return Familiarity(distance=distance, held_out=ordered)


def area_under_curve(familiar: Tensor, unfamiliar: Tensor) -> float:
    """Return how often an unfamiliar picture has a greater distance than a familiar one; ties count half."""
    ordered = familiar.sort().values
    below = torch.searchsorted(ordered, unfamiliar, side="left").double()
    up_to = torch.searchsorted(ordered, unfamiliar, side="right").double()
    return ((below + up_to) / (2 * len(ordered))).mean().item()


def _out_of_fold(features: Tensor, labels: Tensor, *, seed: int) -> Tensor:
    fold = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed)) % min(
        FOLDS, len(features)
    )
    measured = torch.zeros(len(features), dtype=torch.float64)
    for number in range(int(fold.max()) + 1):
        rest = fold != number
        # As much shrinkage as for all images: another would give distances of another kind.
        fitted = fit_distance(features[rest], labels[rest], shrinkage=usual_shrinkage(*features.shape))
        measured[~rest] = fitted(features[~rest])
    return measured


def usual_shrinkage(num_images: int, width: int) -> float:
    """Return the share of the covariance of `num_images` that is replaced by a sphere."""
    return SHRINKAGE_OF_FEW if num_images < FEW_PER_FEATURE * width else SHRINKAGE


def _whitening(centred: Tensor, share: float) -> Tensor:
    covariance = centred.T @ centred / len(centred)
    sphere = covariance.diagonal().mean().clamp_min(1e-12) * torch.eye(len(covariance), dtype=centred.dtype)
    values, vectors = torch.linalg.eigh((1 - share) * covariance + share * sphere)
    return vectors / values.clamp_min(1e-12).sqrt()
