"""Patch embeddings at other patch sizes, as in FlexiViT (arXiv:2212.08013, section 3.4).

Let R be the matrix that resizes a patch of P x P pixels to one of P' x P' pixels. The kernel that belongs to the new
size is w' = pinv(R^T) w: if patches grow, <w', R x> = <w, x> for every patch x, and if they shrink w' is the
least-squares answer. Resizing the kernel like a picture would change the size of its products instead.

As in the authors' code the resize is bilinear without antialias (timm's default is bicubic with antialias).
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]


def resize_matrix(old: Size, new: Size) -> Tensor:
    """Return the matrix (new pixels, old pixels) of the bilinear resize of a patch, in double precision."""
    pixels = torch.eye(math.prod(old), dtype=torch.float64).view(-1, 1, *old)
    resized = F.interpolate(pixels, size=new, mode="bilinear", align_corners=False)
    return resized.flatten(1).T


@functools.cache
def kernel_matrix(old: Size, new: Size) -> Tensor:
    """Return pinv(R^T) (new pixels, old pixels), in double precision on the CPU."""
    return torch.linalg.pinv(resize_matrix(old, new).T)


def resized_kernel(kernel: Tensor, new: Size) -> Tensor:
    """Return the kernel (D, C, *new) of another patch size; gradients reach the given one (D, C, P, P)."""
    old = (kernel.shape[2], kernel.shape[3])
    if old == new:
        return kernel
    if kernel.is_meta:
        return kernel.new_empty(*kernel.shape[:2], *new)
    matrix = kernel_matrix(old, new).to(kernel.device, torch.float32)
    # In fp32 also under autocast: the inverse has large entries of both signs.
    with torch.autocast(kernel.device.type, enabled=False):
        return (kernel.float().flatten(2) @ matrix.T).to(kernel.dtype).view(*kernel.shape[:2], *new)
