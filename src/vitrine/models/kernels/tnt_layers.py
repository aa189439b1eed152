"""Layers of TNT with the kernels: same parameters, same names, same results within bf16's rounding.

Inputs that the kernels do not support run the parent class.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.attention import SelfAttention
from vitrine.models.dropout import Dropout, StochasticDepth
from vitrine.models.kernels.precision import is_low_precision
from vitrine.models.kernels.word_attention import ATTEND_BACKWARD, attend_words
from vitrine.models.kernels.word_mlp import transform_words
from vitrine.models.kernels.words import EPS
from vitrine.models.tnt import Transformer
from vitrine.models.touched import is_plain

KIND = torch.bfloat16
# Limits of the words that the kernels hold on the chip.
MOST_CHANNELS, MOST_HIDDEN = 32, 128


class FastTransformer(Transformer):
    """The inner transformer in two kernels, four with those of the backward pass."""

    def forward(self, tokens: Tensor, num_read: int | None = None) -> Tensor:
        """Map words (patches, W, C) to (patches, W, C)."""
        hidden = self.mlp.expand.out_features
        if num_read is not None or not is_low_precision(tokens) or not self.is_plain():
            return super().forward(tokens, num_read)
        if not suits(tokens, num_heads=self.attention.num_heads, hidden=hidden):
            return super().forward(tokens, num_read)
        attention, mlp = self.attention, self.mlp
        tokens = attend_words(
            tokens.to(KIND), self.norm_1.weight, self.norm_1.bias, attention.to_qkv.weight,
            attention.to_qkv.bias, attention.to_out.weight, attention.to_out.bias,
            factors(self.stochastic_depth_1, tokens), num_heads=attention.num_heads,
        )  # fmt: skip
        return transform_words(
            tokens, self.norm_2.weight, self.norm_2.bias, mlp.expand.weight, mlp.expand.bias, mlp.contract.weight,
            mlp.contract.bias, factors(self.stochastic_depth_2, tokens),
        )  # fmt: skip

    def is_plain(self) -> bool:
        """Whether every layer inside computes as built, and as the kernels do."""
        attention, mlp = self.attention, self.mlp
        linears = (attention.to_qkv, attention.to_out, mlp.expand, mlp.contract)
        dropouts = (self.dropout, mlp.hidden_dropout, mlp.dropout)
        return (
            isinstance(attention, SelfAttention)
            and attention.scale is None
            and isinstance(attention.dropout, nn.Identity)
            and isinstance(attention.q_norm, nn.Identity)
            and (mlp.activation, mlp.gelu) == ("gelu", "erf")
            and all(is_plain(layer, nn.Linear) for layer in linears)
            and all(is_plain(norm, nn.LayerNorm) and norm.eps == EPS for norm in (self.norm_1, self.norm_2))
            and all(is_plain(layer, Dropout) and not (layer.rate and self.training) for layer in dropouts)
        )


def factors(depth: StochasticDepth, tokens: Tensor) -> Tensor | None:
    """Return the factor of stochastic depth for each patch's branch, (patches); None if all are kept."""
    if not depth.training or depth.rate == 0:
        return None
    return depth(tokens.new_ones(len(tokens), 1, 1, dtype=torch.float32)).flatten()


class FastWordProjection(nn.Conv2d):
    """Words of patches as one matrix product with the kernel laid out for every place in a patch.

    A patch of 16 x 16 pixels has 16 words: the product with zeros for the pixels that a word does not see has five
    times the multiplications of the convolution, and takes a fraction of its time.
    """

    def forward(self, patches: Tensor) -> Tensor:
        """Map patches (P, C, side, side) to maps of their words (P, E, rows, columns)."""
        if not is_low_precision(patches):
            return super().forward(patches)
        height, width = patches.shape[2:]
        down, across = self.places(height, axis=0), self.places(width, axis=1)
        # y and x: positions in the kernel; h and w: in the patch; i and j: of the word.
        spread = torch.einsum("ecyx,iyh,jxw->ijechw", self.weight, down, across)
        rows, columns, E = spread.shape[:3]
        bias = None if self.bias is None else self.bias.repeat(rows * columns)
        flat = F.linear(patches.flatten(1), spread.reshape(rows * columns * E, -1), bias)
        return flat.view(-1, rows, columns, E).permute(0, 3, 1, 2)

    def places(self, size: int, *, axis: int) -> Tensor:
        """Return ones where a word (first axis) sees a pixel (last) through a place of the kernel (second)."""
        kernel, stride, padding = self.kernel_size[axis], self.stride[axis], int(self.padding[axis])
        count = (size + 2 * padding - kernel) // stride + 1
        counts = (torch.arange(number, device=self.weight.device) for number in (count, kernel, size))
        words, taps, pixels = counts
        at = words[:, None] * stride + taps - padding
        return (at[..., None] == pixels).to(self.weight.dtype)


def suits(words: Tensor, *, num_heads: int, hidden: int) -> bool:
    """Return whether the kernels support words (patches, W, C): whole patches in a block, all channels in a tile."""
    W, C = words.shape[1:]
    fits = ATTEND_BACKWARD[0] % W == 0 and C <= MOST_CHANNELS and C % num_heads == 0 and hidden <= MOST_HIDDEN
    return words.is_cuda and fits
