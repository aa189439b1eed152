"""Principal components of the filters that read the pixels (Figure 7, left).

Shapes: D filters of P x Q pixels and C channels, K components.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models import Model, ViT
from vitrine.models.families import family_of
from vitrine.models.resnet_stem import ResNetStem
from vitrine.models.standardised_conv import StandardisedConv2d
from vitrine.models.t2t_vit import TokensToToken

PAPER_COUNT = 28


@dataclass(frozen=True, kw_only=True)
class FilterComponents:
    """Components (K, P, Q, C) of unit length, their fraction of the variance (K,), and as pictures (K, P, Q, 3)."""

    components: NDArray[Any]
    explained: NDArray[Any]
    pictures: NDArray[Any]
    """From 0 to 1; grey is zero."""


def filter_components(model: Model, *, count: int = PAPER_COUNT) -> FilterComponents:
    """Return the leading principal components of the first kernel: the patch embedding or, with a stem, its root."""
    if count < 1:
        raise ConfigError(f"count must be at least 1, got {count}")
    kernel = pixel_kernel(model)  # (D, C, P, Q)
    D, C, P, Q = kernel.shape
    flat = kernel.transpose(0, 2, 3, 1).reshape(D, -1)
    centred = flat - flat.mean(axis=0)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    kept = directions[:count]
    # The sign of a component is arbitrary: make its largest weight positive, so that every run draws the same.
    largest = np.take_along_axis(kept, np.abs(kept).argmax(axis=1)[:, None], axis=1)
    components = (kept * np.where(largest < 0, -1, 1)).reshape(-1, P, Q, C)
    total = (lengths**2).sum()
    explained = lengths[:count] ** 2 / (total if total > 0 else 1)
    return FilterComponents(components=components, explained=explained, pictures=as_pictures(components))


def has_pixel_kernel(model: Model) -> bool:
    """Whether a kernel reads pixels: T2T-ViT gathers and normalises them before any product."""
    return not (isinstance(model, ViT) and isinstance(model.stem, TokensToToken))


def pixel_kernel(model: Model) -> NDArray[Any]:
    """Return the kernel that reads pixels, (D, C, P, Q) in float64; in a hybrid and in a ResNet the root's."""
    if isinstance(model, ViT):
        weight = stem_kernel(model.stem) if model.config.stem else model.patch_projection.weight
    else:
        name = family_of(model.config).pixel_kernel
        if name is None:
            raise ConfigError(f"a {family_of(model.config).kind} has no convolution that reads pixels")
        layer = model.get_submodule(name.removesuffix(".weight"))
        weight = (
            layer.standardised_weight()
            if isinstance(layer, StandardisedConv2d)
            else layer.get_parameter("weight")
        )
    return weight.detach().double().cpu().numpy()


def stem_kernel(stem: nn.Module) -> Tensor:
    """Return the first kernel of a stem, as it is convolved with."""
    if isinstance(stem, ResNetStem):
        return stem.root_conv.standardised_weight()
    convolutions = [module for module in stem.modules() if isinstance(module, nn.Conv2d)]
    if not convolutions:
        raise ConfigError("this model has no filters: its stem has no convolution")
    return convolutions[0].weight


def as_pictures(components: NDArray[Any]) -> NDArray[Any]:
    """Turn components (K, P, Q, C) into colours (K, P, Q, 3) from 0 to 1, each scaled by its largest weight.

    One channel is grey and three are RGB; any other number is projected on the three directions that vary most.
    """
    C = components.shape[-1]
    colours = components
    if C == 1:
        colours = np.repeat(components, 3, axis=-1)
    elif C != 3:
        _, _, directions = np.linalg.svd(components.reshape(-1, C), full_matrices=False)
        mixed = components @ directions[:3].T
        colours = np.pad(mixed, [(0, 0)] * 3 + [(0, 3 - mixed.shape[-1])])
    most = np.abs(colours).max(axis=(1, 2, 3), keepdims=True)
    return 0.5 + 0.5 * colours / np.where(most > 0, most, 1)
