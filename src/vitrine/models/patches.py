"""Cutting images into patches (eq. 1), where the model itself, its deployed form and masked training need it."""

from torch import Tensor

Grid = tuple[int, int]


def cut_patches(images: Tensor, patch_size: tuple[int, int]) -> tuple[Tensor, Grid]:
    """Cut (B, C, height, width) into flat patches (B, N, C x P x P) in raster order, and return their grid."""
    B, C, height, width = images.shape
    P, Q = patch_size
    grid = (height // P, width // Q)
    pieces = images.reshape(B, C, grid[0], P, grid[1], Q).permute(0, 2, 4, 1, 3, 5)  # (B, GH, GW, C, P, P)
    return pieces.reshape(B, grid[0] * grid[1], C * P * Q), grid
