"""Hidden patches as pictures: what the model was given, what it made of it, what was there.

Shapes: B images of C channels, N patches of P x Q pixels on a grid of GH x GW, M of them corrupted. Pixels go from 0
to 255.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrine.models.positions import Grid
from vitrine.models.vit import cut_patches
from vitrine.objectives.masked_autoencoder import MaskedAutoencoder, num_visible
from vitrine.objectives.masked_patches import MaskedPatches, take
from vitrine.objectives.patch_targets import DOWNSIZED, VARIANCE_EPS, Target, class_colours

# [mask] has no colour; a grey that lies in the middle stands for it.
GREY = 127.5


@torch.no_grad()
def reconstructions(module: MaskedPatches | MaskedAutoencoder, images: Tensor, pixels: Tensor) -> Tensor:
    """Return masked input, prediction and original of each image as uint8 (B, 3, C, height, width).

    `images` are `pixels` (B, C, height, width) as the model reads them. What was not hidden is shown as it is.
    """
    size = module.vit.config.token_stride
    patches, grid = cut_patches(pixels.float(), size)  # (B, N, C x P x Q)
    if isinstance(module, MaskedPatches):
        given, told = shown_corruption(module, images, patches)
    else:
        given, told = shown_gaps(module, images, patches)
    rows = [join_patches(part, size, grid) for part in (given, told, patches)]
    return torch.stack(rows, dim=1).round().clamp(0, 255).to(torch.uint8)


def shown_corruption(module: MaskedPatches, images: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """Paint [mask] grey and replaced patches as those that took their place; and what the head says of them."""
    outputs, found = module.reconstruct(images)
    own = take(patches, found.positions)  # (B, M, C x P x Q)
    given = torch.where(found.is_replaced[..., None], take(patches, found.others), own)
    given = torch.where(found.is_masked[..., None], torch.full_like(own, GREY), given)
    told = painted(
        outputs.float(),
        module.config.target,
        module.vit.config.token_stride,
        channels=module.vit.config.channels,
    )
    where = found.positions[..., None].expand_as(own)
    return patches.scatter(1, where, given), patches.scatter(1, where, told)


def shown_gaps(module: MaskedAutoencoder, images: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """Paint hidden patches grey; and as predicted, with mean and deviation of the patch itself put back."""
    told, order = module.reconstruct(images)
    told = told.float()
    if module.config.normalises:
        scaled = patches / 127.5 - 1
        mean, variance = scaled.mean(dim=-1, keepdim=True), scaled.var(dim=-1, keepdim=True)
        told = told * (variance + VARIANCE_EPS).sqrt() + mean
    told = (told + 1) * 127.5
    hidden = order[:, num_visible(order.shape[1], hidden=module.config.hidden) :]
    where = hidden[..., None].expand(-1, -1, patches.shape[-1])
    return patches.scatter(1, where, GREY), patches.scatter(1, where, take(told, hidden))


def painted(outputs: Tensor, target: Target, patch_size: tuple[int, int], *, channels: int) -> Tensor:
    """Turn what the head says (B, M, O) into pixels (B, M, C x P x Q): the likeliest colours, or the values."""
    if target == "pixels":
        return (outputs + 1) * 127.5
    B, M, _ = outputs.shape
    side = DOWNSIZED if target == "downsized-colors" else 1
    classes = outputs.reshape(B * M, side * side, -1).argmax(dim=-1)
    colours = class_colours(classes, channels=channels)  # (B M, cells, C)
    colours = colours.transpose(1, 2).reshape(B * M, channels, side, side)
    return F.interpolate(colours, size=patch_size, mode="nearest").reshape(B, M, -1)


def join_patches(patches: Tensor, patch_size: tuple[int, int], grid: Grid) -> Tensor:
    """Put flat patches (B, N, C x P x Q) together to images (B, C, height, width): `cut_patches` backwards."""
    B, (P, Q), (GH, GW) = len(patches), patch_size, grid
    pieces = patches.reshape(B, GH, GW, -1, P, Q).permute(0, 3, 1, 4, 2, 5)  # (B, C, GH, P, GW, Q)
    return pieces.reshape(B, -1, GH * P, GW * Q)
