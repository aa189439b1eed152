"""The MLP of TNT's inner transformer, norm and residual included, forward and backward.

Shapes: R words of all patches, C channels, M hidden channels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from vitrine.models.kernels.gelu import _normal
from vitrine.models.kernels.words import (
    EPS,
    _factor,
    _matrix,
    _store_matrix,
    _unit,
    _unit_backward,
    _vector,
    padded,
)

TRANSFORM, TRANSFORM_BACKWARD = (64, 256, 4), (16, 768, 1)


@triton.jit
def _transform(
    words, norm_weight, norm_bias, w1, b1, w2, b2, factors, out, R,
    C: tl.constexpr, CHANNELS: tl.constexpr, M: tl.constexpr, HIDDEN: tl.constexpr, W: tl.constexpr,
    ROWS: tl.constexpr, ROWS_OF_PROGRAM: tl.constexpr, EPS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):  # fmt: skip
    """Write x + factor * (MLP of LN(x))."""
    kind = words.dtype.element_ty
    channel, hidden, own = tl.arange(0, CHANNELS), tl.arange(0, HIDDEN), tl.arange(0, ROWS)
    in_width = channel < C
    gain, shift = _vector(norm_weight, channel, C), _vector(norm_bias, channel, C)
    first, second = _matrix(w1, hidden, channel, M, C), _matrix(w2, channel, hidden, C, M)
    before, after = _vector(b1, hidden, M), _vector(b2, channel, C)
    for start in range(0, ROWS_OF_PROGRAM, ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS_OF_PROGRAM + start + own
        inside = (row < R)[:, None] & in_width[None, :]
        place = row[:, None] * C + channel[None, :]
        x = tl.load(words + place, mask=inside, other=0.0).to(tl.float32)
        unit, _ = _unit(x, in_width, C, EPS)
        normed = (unit * gain[None, :] + shift[None, :]).to(kind)
        u = tl.dot(normed, tl.trans(first)) + before[None, :]
        below, _ = _normal(u)
        branch = tl.dot((u * below).to(kind), tl.trans(second)) + after[None, :]
        branch *= _factor(factors, row, R, W, HAS_FACTORS)[:, None]
        tl.store(out + place, (x + branch).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _transform_backward(
    words, d_out, norm_weight, norm_bias, w1, b1, w2, factors, d_words, sums, R,
    C: tl.constexpr, CHANNELS: tl.constexpr, M: tl.constexpr, HIDDEN: tl.constexpr, W: tl.constexpr,
    ROWS: tl.constexpr, ROWS_OF_PROGRAM: tl.constexpr, EPS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x and the program's part of the weights' gradients."""
    kind = words.dtype.element_ty
    channel, hidden, own = tl.arange(0, CHANNELS), tl.arange(0, HIDDEN), tl.arange(0, ROWS)
    in_width = channel < C
    gain, shift = _vector(norm_weight, channel, C), _vector(norm_bias, channel, C)
    first, second = _matrix(w1, hidden, channel, M, C), _matrix(w2, channel, hidden, C, M)
    before = _vector(b1, hidden, M)
    d_w1 = tl.zeros((HIDDEN, CHANNELS), tl.float32)
    d_w2 = tl.zeros((HIDDEN, CHANNELS), tl.float32)  # transposed: wide products are faster than high ones
    d_b1 = tl.zeros((HIDDEN,), tl.float32)
    d_b2 = tl.zeros((CHANNELS,), tl.float32)
    d_gain = tl.zeros((CHANNELS,), tl.float32)
    d_shift = tl.zeros((CHANNELS,), tl.float32)
    for start in range(0, ROWS_OF_PROGRAM, ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS_OF_PROGRAM + start + own
        inside = (row < R)[:, None] & in_width[None, :]
        place = row[:, None] * C + channel[None, :]
        x = tl.load(words + place, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
        unit, inverse = _unit(x, in_width, C, EPS)
        normed = (unit * gain[None, :] + shift[None, :]).to(kind)
        u = tl.dot(normed, tl.trans(first)) + before[None, :]
        below, density = _normal(u)
        d_branch = g * _factor(factors, row, R, W, HAS_FACTORS)[:, None]
        d_b2 += tl.sum(d_branch, 0)
        d_branch = d_branch.to(kind)
        d_w2 += tl.dot(tl.trans((u * below).to(kind)), d_branch)
        d_u = tl.dot(d_branch, second) * (below + u * density)
        d_b1 += tl.sum(d_u, 0)
        d_u = d_u.to(kind)
        d_w1 += tl.dot(tl.trans(d_u), normed)
        d_normed = tl.dot(d_u, first)
        d_gain += tl.sum(d_normed * unit, 0)
        d_shift += tl.sum(d_normed, 0)
        d_x = g + _unit_backward(d_normed * gain[None, :], unit, inverse, in_width, C)
        tl.store(d_words + place, d_x.to(d_words.dtype.element_ty), mask=inside)
    mine = sums + tl.program_id(0).to(tl.int64) * (2 * M * C + M + 3 * C)
    _store_matrix(mine, d_w1, hidden, channel, M, C)
    _store_matrix(mine + M * C, d_w2, hidden, channel, M, C)
    mine += 2 * M * C
    tl.store(mine + hidden, d_b1, mask=hidden < M)
    tl.store(mine + M + channel, d_b2, mask=in_width)
    tl.store(mine + M + C + channel, d_gain, mask=in_width)
    tl.store(mine + M + 2 * C + channel, d_shift, mask=in_width)


@triton_op("vitrine::transform_words", mutates_args=())
def transform_forward(
    words: Tensor, norm_weight: Tensor, norm_bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    factors: Tensor | None, num_words: int,
) -> Tensor:  # fmt: skip
    """Return words (R, C) plus their MLP with exact GELU, times a factor per patch if there are any."""
    R, C, M = words.shape[0], int(words.shape[1]), int(w1.shape[0])  # a kernel is compiled for each C and M
    out = torch.empty_like(words)
    rows, rows_of_program, warps = TRANSFORM
    wrap_triton(_transform)[(triton.cdiv(R, rows_of_program),)](
        words, norm_weight, norm_bias, w1, b1, w2, b2, words if factors is None else factors, out, R,
        C=C, CHANNELS=padded(C), M=M, HIDDEN=padded(M), W=num_words, ROWS=rows, ROWS_OF_PROGRAM=rows_of_program,
        EPS=EPS, HAS_FACTORS=factors is not None, num_warps=warps, num_stages=1,
    )  # fmt: skip
    return out


@triton_op("vitrine::transform_words_backward", mutates_args=())
def transform_backward(
    words: Tensor, d_out: Tensor, norm_weight: Tensor, norm_bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor,
    factors: Tensor | None, num_words: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradient of the words and, in one row, those of the layers (w2 transposed) and of the norm."""
    R, C, M = words.shape[0], int(words.shape[1]), int(w1.shape[0])  # a kernel is compiled for each C and M
    rows, rows_of_program, warps = TRANSFORM_BACKWARD
    programs = triton.cdiv(R, rows_of_program)
    d_words = torch.empty_like(words)
    sums = words.new_empty(programs, 2 * M * C + M + 3 * C, dtype=torch.float32)
    wrap_triton(_transform_backward)[(programs,)](
        words, d_out.contiguous(), norm_weight, norm_bias, w1, b1, w2, words if factors is None else factors,
        d_words, sums, R, C=C, CHANNELS=padded(C), M=M, HIDDEN=padded(M), W=num_words, ROWS=rows,
        ROWS_OF_PROGRAM=rows_of_program, EPS=EPS, HAS_FACTORS=factors is not None, num_warps=warps, num_stages=1,
    )  # fmt: skip
    return d_words, sums.sum(0)


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, words: Tensor, norm_weight: Tensor, norm_bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor,
        b2: Tensor, factors: Tensor | None, num_words: int,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(words, norm_weight, norm_bias, w1, b1, w2, factors)
        ctx.settings, kind = (num_words,), words.dtype
        return transform_forward(
            words, norm_weight, norm_bias, w1.to(kind), b1, w2.to(kind), b2, factors, *ctx.settings
        )

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        words, norm_weight, norm_bias, w1, b1, w2, factors = ctx.saved_tensors
        (M, C), kind = w1.shape, words.dtype
        d_words, sums = transform_backward(
            words, d_out, norm_weight, norm_bias, w1.to(kind), b1, w2.to(kind), factors, *ctx.settings
        )
        d_w1, d_w2, d_b1, d_b2, d_gain, d_shift = sums.split([M * C, M * C, M, C, C, C])
        return (
            d_words, d_gain, d_shift, d_w1.view(M, C), d_b1, d_w2.view(M, C).t(), d_b2, None, None,
        )  # fmt: skip


def transform_words(words: Tensor, *weights: Tensor | None) -> Tensor:
    """Return words (patches, W, C) plus their MLP.

    `weights`: gain and shift of the norm, weights and biases of both layers, in fp32; last a factor per patch, or
    None.
    """
    rows = words.reshape(-1, words.shape[2])
    out: Tensor = _Transform.apply(rows, *weights, words.shape[1])  # type: ignore[no-untyped-call]
    return out.view(words.shape)
