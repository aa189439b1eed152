"""Whitening of the patch embedding: its outputs for training patches are uncorrelated, with a mean square of one.

Neighbouring pixels are almost equal, so a random projection of patches sees little but their mean colour. The
whitening transform of the patches (as the first layer of the CIFAR-10 speed runs, arXiv:2404.00498, section 3.1) is
turned by a random semi-orthogonal matrix to the width of the model:

    E = sqrt(D / k) R (Lambda_k + eps I)^(-1/2) V_k^T      b = -E mean

with eigenvalues Lambda and eigenvectors V of the patches' covariance, k = min(D, P) of them, the largest.

Shapes: B images, N patches of P numbers, D width.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.encoder import cut_patches
from vitrine.models.vit import ViT

# Added to the eigenvalues, relative to their mean: without it, the weakest differences between pixels, which are
# mostly noise of the camera, would weigh as much as edges.
RELATIVE_EPS = 0.01


def whiten_patches(model: ViT, batches: Iterable[Tensor], *, relative_eps: float = RELATIVE_EPS) -> None:
    """Fill the patch embedding from normalised images (B, C, height, width); torch's generator draws the turn."""
    layer = model.patch_projection
    if model.config.stem is not None or not isinstance(layer, nn.Conv2d):
        raise ConfigError("whitens_patches needs a ViT without a stem")
    mean, covariance = patch_statistics(batches, patch=model.config.patch_size)
    kernel = whitening_kernel(covariance, width=model.config.width, relative_eps=relative_eps)
    with torch.no_grad():
        layer.weight.copy_(kernel.view_as(layer.weight))
        if layer.bias is not None:
            layer.bias.copy_(-kernel @ mean)


def patch_statistics(batches: Iterable[Tensor], *, patch: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return mean (P,) and covariance (P, P) of all patches of some images, in fp64."""
    count, total, products = 0, torch.zeros(()).double(), torch.zeros(()).double()
    for images in batches:
        patches = cut_patches(images.double().cpu(), patch)[0].flatten(0, 1)  # (B x N, P)
        count += len(patches)
        total = total + patches.sum(dim=0)
        products = products + patches.T @ patches
    mean = total / count
    return mean, products / count - mean[:, None] * mean


def whitening_kernel(covariance: Tensor, *, width: int, relative_eps: float) -> Tensor:
    """Return E (D, P) for patches of this covariance (P, P)."""
    values, vectors = torch.linalg.eigh(covariance)  # ascending
    k = min(width, len(values))
    eps = relative_eps * values.mean()
    whitened = (values[-k:] + eps).rsqrt()[:, None] * vectors[:, -k:].T  # (k, P)
    turn = nn.init.orthogonal_(torch.empty(width, k)).double()  # R: columns are orthonormal
    return (width / k) ** 0.5 * turn @ whitened
