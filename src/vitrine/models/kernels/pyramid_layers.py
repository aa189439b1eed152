"""Layers of pyramids with the kernels: same parameters, same names, same results within bf16's rounding.

Tokens (B, N, D) stay in their order throughout: neither the depth-wise convolution nor the reduction of keys needs a
map with its channels first. Inputs that the kernels do not support run the parent class.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.encoder import cut_patches
from vitrine.models.kernels import reduced_attention
from vitrine.models.kernels.convolved_gelu import convolved_gelu
from vitrine.models.kernels.precision import is_low_precision
from vitrine.models.positions import Grid
from vitrine.models.pvt_v2 import ConvolvedMlp
from vitrine.models.pyramid import PatchEmbedding, ReducedAttention
from vitrine.models.touched import is_plain

# Wider maps are left to the convolution, which does not copy them.
MOST_UNFOLDED = 4


class FastConvolvedMlp(ConvolvedMlp):
    """The MLP of PVT v2 with one kernel between its products, two backward."""

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Map tokens (B, N, D) to (B, N, D)."""
        layers = (self.expand, self.contract)
        if not (is_low_precision(tokens) and all(is_plain(layer, nn.Linear) for layer in layers)):
            return super().forward(tokens, grid)
        kernel, bias = self.mix.weight, self.mix.bias
        if bias is None or not is_plain(self.mix, nn.Conv2d):
            return super().forward(tokens, grid)
        product = F.linear(tokens, self.expand.weight)
        hidden = convolved_gelu(product, self.expand.bias, kernel, bias, grid=grid, relu=self.has_relu)
        return self.dropout(self.contract(self.hidden_dropout(hidden)))


class FastReducedAttention(ReducedAttention):
    """Attention to reduced keys on queries, keys and values as the projections write them."""

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Mix tokens (B, N, D) on their grid."""
        if not (is_low_precision(tokens) and self.is_plain()):
            return super().forward(tokens, grid)
        source = self.reduce(tokens, grid)
        B, S, _ = source.shape
        if not reduced_attention.suits(tokens, num_keys=S, num_heads=self.num_heads):
            return super().forward(tokens, grid)
        kv = self.to_kv(source).view(B, S, 2, self.num_heads, -1)
        return self.to_out(reduced_attention.reduced_attention(self.to_q(tokens), kv))

    def is_plain(self) -> bool:
        """Whether the projections compute as built."""
        return is_plain(self.to_q, nn.Linear) and is_plain(self.to_kv, nn.Linear)

    def reduce(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Return the input of keys and values, (B, S, D): patches of tokens in one product."""
        layer, norm = self.reduction, self.reduction_norm
        if layer is None or norm is None or self.pooled_side is not None:
            return super().reduce(tokens, grid)
        if not (is_low_precision(tokens) and is_plain(layer, nn.Conv2d)):
            return super().reduce(tokens, grid)
        R, (GH, GW), D = layer.stride[0], grid, tokens.shape[-1]
        rows, columns = GH // R, GW // R
        cells = tokens.view(-1, GH, GW, D)[:, : rows * R, : columns * R]
        patches = (
            cells.reshape(-1, rows, R, columns, R, D).transpose(2, 3).reshape(-1, rows * columns, R * R * D)
        )
        kernel = layer.weight.permute(0, 2, 3, 1).flatten(1)  # patches have their channels last
        reduced: Tensor = norm(F.linear(patches, kernel, layer.bias))
        return reduced


class FastPatchEmbedding(PatchEmbedding):
    """Overlapping patches of an image as one matrix product; convolving three channels is several times slower."""

    def forward(self, maps: Tensor) -> tuple[Tensor, Grid]:
        """Map images (B, C, rows, columns) to tokens (B, N, D) and their grid."""
        layer = self.projection
        k, s = layer.kernel_size[0], layer.stride[0]
        overlaps = k == 2 * s - 1 and layer.padding[0] == s - 1 and maps.shape[1] <= MOST_UNFOLDED
        fits = maps.shape[2] % s == 0 and maps.shape[3] % s == 0
        if not (overlaps and fits and is_low_precision(maps) and is_plain(layer, nn.Conv2d)):
            return super().forward(maps)
        # With one more row and column of zeros, a kernel covers two by two blocks of as many pixels as its stride.
        pieces, grid = cut_patches(maps, (s, s))
        blocks = F.pad(pieces.view(len(maps), *grid, -1), (0, 0, 1, 0, 1, 0))
        around = (blocks[:, :-1, :-1], blocks[:, :-1, 1:], blocks[:, 1:, :-1], blocks[:, 1:, 1:])
        kernel = F.pad(layer.weight, (1, 0, 1, 0)).view(layer.out_channels, -1, 2, s, 2, s)
        kernel = kernel.permute(0, 2, 4, 1, 3, 5).flatten(1)
        projected = F.linear(torch.cat(around, dim=-1).flatten(1, 2), kernel, layer.bias)
        return self.normalised(projected), grid
