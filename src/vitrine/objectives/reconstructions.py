"""Hidden patches as pictures: the corrupted input, the prediction, the original.

Shapes: B images of C channels, N patches of P x Q pixels on a grid of GH x GW, M of them corrupted. Pixels go from 0
to 255.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrine.models import ViT
from vitrine.models.encoder import cut_patches
from vitrine.models.positions import Grid
from vitrine.objectives.patch_targets import DOWNSIZED, Target, class_colours

# [mask] has no colour; medium grey stands for it.
GREY = 127.5


class Reconstructs(Protocol):
    """A module that hides patches of its images and predicts them."""

    vit: ViT

    def corrupted_and_predicted(self, images: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Return all patches (B, N, C x P x Q) as the model reads them, and with the hidden ones predicted."""


@torch.no_grad()
def reconstructions(module: Reconstructs, images: Tensor, pixels: Tensor) -> list[Tensor]:
    """Return corrupted input, prediction and original, each uint8 (B, C, height, width).

    `images` are `pixels` (B, C, height, width) as the model reads them. Visible patches are unchanged.
    """
    size = module.vit.config.token_stride
    patches, grid = cut_patches(pixels.float(), size)  # (B, N, C x P x Q)
    corrupted, predicted = module.corrupted_and_predicted(images, patches)
    rows = [join_patches(part, size, grid) for part in (corrupted, predicted, patches)]
    return [row.round().clamp(0, 255).to(torch.uint8) for row in rows]


def painted(outputs: Tensor, target: Target, patch_size: tuple[int, int], *, channels: int) -> Tensor:
    """Turn outputs of the head (B, M, O) into pixels (B, M, C x P x Q): the likeliest colours, or the values."""
    if target == "pixels":
        return (outputs + 1) * 127.5
    B, M, _ = outputs.shape
    side = DOWNSIZED if target == "downsized-colors" else 1
    classes = outputs.reshape(B * M, side * side, -1).argmax(dim=-1)
    colours = class_colours(classes, channels=channels)  # (B M, cells, C)
    colours = colours.transpose(1, 2).reshape(B * M, channels, side, side)
    return F.interpolate(colours, size=patch_size, mode="nearest").reshape(B, M, -1)


def join_patches(patches: Tensor, patch_size: tuple[int, int], grid: Grid) -> Tensor:
    """Join flat patches (B, N, C x P x Q) into images (B, C, height, width): the inverse of `cut_patches`."""
    B, (P, Q), (GH, GW) = len(patches), patch_size, grid
    pieces = patches.reshape(B, GH, GW, -1, P, Q).permute(0, 3, 1, 4, 2, 5)  # (B, C, GH, P, GW, Q)
    return pieces.reshape(B, -1, GH * P, GW * Q)
