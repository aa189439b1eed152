"""Attention within each patch of TNT's inner transformer, norm and residual included, forward and backward.

Shapes: R words of all patches, W words per patch, C channels, H heads.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from vitrine.models.kernels.packed_attention import LOG2_E
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

# Words per block and per program, and warps, tuned on an H200 (docs/experiments.md): a warp takes 16 words.
ATTEND, ATTEND_BACKWARD = (32, 256, 2), (32, 768, 2)


@triton.jit
def _weights_of_head(q, k, of_head, same_patch, SCALE_LOG2: tl.constexpr):
    """Return one head's attention weights among the words of each patch; those of other patches are zero."""
    mine = tl.where(of_head[None, :], q, 0.0).to(q.dtype)
    logits = tl.where(same_patch, tl.dot(mine, tl.trans(k)) * SCALE_LOG2, float("-inf"))
    p = tl.exp2(logits - tl.max(logits, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@triton.jit
def _attend(
    words, norm_weight, norm_bias, w_qkv, b_qkv, w_out, b_out, factors, out, R,
    C: tl.constexpr, CHANNELS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    ROWS: tl.constexpr, ROWS_OF_PROGRAM: tl.constexpr, EPS: tl.constexpr, SCALE_LOG2: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_FACTORS: tl.constexpr,
):  # fmt: skip
    """Write x + factor * (attention of LN(x))."""
    kind = words.dtype.element_ty
    channel, own = tl.arange(0, CHANNELS), tl.arange(0, ROWS)
    in_width = channel < C
    head_of = channel // (C // H)
    same_patch = (own // W)[:, None] == (own // W)[None, :]
    gain, shift = _vector(norm_weight, channel, C), _vector(norm_bias, channel, C)
    added = _vector(b_out, channel, C)
    wq = _matrix(w_qkv, channel, channel, C, C)
    wk = _matrix(w_qkv + C * C, channel, channel, C, C)
    wv = _matrix(w_qkv + 2 * C * C, channel, channel, C, C)
    wo = _matrix(w_out, channel, channel, C, C)
    for start in range(0, ROWS_OF_PROGRAM, ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS_OF_PROGRAM + start + own
        inside = (row < R)[:, None] & in_width[None, :]
        place = row[:, None] * C + channel[None, :]
        x = tl.load(words + place, mask=inside, other=0.0).to(tl.float32)
        unit, _ = _unit(x, in_width, C, EPS)
        normed = (unit * gain[None, :] + shift[None, :]).to(kind)
        q, k, v = tl.dot(normed, tl.trans(wq)), tl.dot(normed, tl.trans(wk)), tl.dot(normed, tl.trans(wv))
        if HAS_BIAS:
            q += _vector(b_qkv, channel, C)[None, :]
            k += _vector(b_qkv + C, channel, C)[None, :]
            v += _vector(b_qkv + 2 * C, channel, C)[None, :]
        q, k, v = q.to(kind), k.to(kind), v.to(kind)
        mixed = tl.zeros((ROWS, CHANNELS), tl.float32)
        for head in tl.static_range(H):
            of_head = head_of == head
            p = _weights_of_head(q, k, of_head, same_patch, SCALE_LOG2)
            mixed += tl.dot(p.to(kind), tl.where(of_head[None, :], v, 0.0).to(kind))
        branch = tl.dot(mixed.to(kind), tl.trans(wo)) + added[None, :]
        branch *= _factor(factors, row, R, W, HAS_FACTORS)[:, None]
        tl.store(out + place, (x + branch).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _attend_backward(  # noqa: PLR0915 (one kernel: what it keeps is named line by line)
    words, d_out, norm_weight, norm_bias, w_qkv, b_qkv, w_out, factors, d_words, sums, R,
    C: tl.constexpr, CHANNELS: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    ROWS: tl.constexpr, ROWS_OF_PROGRAM: tl.constexpr, EPS: tl.constexpr,
    SCALE: tl.constexpr, SCALE_LOG2: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_FACTORS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x and the program's part of the weights' gradients."""
    kind = words.dtype.element_ty
    channel, own = tl.arange(0, CHANNELS), tl.arange(0, ROWS)
    in_width = channel < C
    head_of = channel // (C // H)
    same_patch = (own // W)[:, None] == (own // W)[None, :]
    gain, shift = _vector(norm_weight, channel, C), _vector(norm_bias, channel, C)
    wq = _matrix(w_qkv, channel, channel, C, C)
    wk = _matrix(w_qkv + C * C, channel, channel, C, C)
    wv = _matrix(w_qkv + 2 * C * C, channel, channel, C, C)
    wo = _matrix(w_out, channel, channel, C, C)
    d_wq = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    d_wk = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    d_wv = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    d_wo = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    d_bq = tl.zeros((CHANNELS,), tl.float32)
    d_bk = tl.zeros((CHANNELS,), tl.float32)
    d_bv = tl.zeros((CHANNELS,), tl.float32)
    d_bo = tl.zeros((CHANNELS,), tl.float32)
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
        q, k, v = tl.dot(normed, tl.trans(wq)), tl.dot(normed, tl.trans(wk)), tl.dot(normed, tl.trans(wv))
        if HAS_BIAS:
            q += _vector(b_qkv, channel, C)[None, :]
            k += _vector(b_qkv + C, channel, C)[None, :]
            v += _vector(b_qkv + 2 * C, channel, C)[None, :]
        q, k, v = q.to(kind), k.to(kind), v.to(kind)
        d_branch = g * _factor(factors, row, R, W, HAS_FACTORS)[:, None]
        d_bo += tl.sum(d_branch, 0)
        d_branch = d_branch.to(kind)
        d_mixed = tl.dot(d_branch, wo).to(kind)
        mixed = tl.zeros((ROWS, CHANNELS), tl.float32)
        d_q = tl.zeros((ROWS, CHANNELS), tl.float32)
        d_k = tl.zeros((ROWS, CHANNELS), tl.float32)
        d_v = tl.zeros((ROWS, CHANNELS), tl.float32)
        for head in tl.static_range(H):
            of_head = head_of == head
            p = _weights_of_head(q, k, of_head, same_patch, SCALE_LOG2)
            p_low = p.to(kind)
            d_mine = tl.where(of_head[None, :], d_mixed, 0.0).to(kind)
            mixed += tl.dot(p_low, tl.where(of_head[None, :], v, 0.0).to(kind))
            d_v += tl.dot(tl.trans(p_low), d_mine)
            d_p = tl.dot(d_mine, tl.trans(v))
            d_logits = (p * (d_p - tl.sum(p * d_p, 1)[:, None]) * SCALE).to(kind)
            d_q += tl.dot(d_logits, tl.where(of_head[None, :], k, 0.0).to(kind))
            d_k += tl.dot(tl.trans(d_logits), tl.where(of_head[None, :], q, 0.0).to(kind))
        d_wo += tl.dot(tl.trans(d_branch), mixed.to(kind))
        if HAS_BIAS:
            d_bq += tl.sum(d_q, 0)
            d_bk += tl.sum(d_k, 0)
            d_bv += tl.sum(d_v, 0)
        d_q, d_k, d_v = d_q.to(kind), d_k.to(kind), d_v.to(kind)
        d_wq += tl.dot(tl.trans(d_q), normed)
        d_wk += tl.dot(tl.trans(d_k), normed)
        d_wv += tl.dot(tl.trans(d_v), normed)
        d_normed = tl.dot(d_q, wq) + tl.dot(d_k, wk) + tl.dot(d_v, wv)
        d_gain += tl.sum(d_normed * unit, 0)
        d_shift += tl.sum(d_normed, 0)
        d_x = g + _unit_backward(d_normed * gain[None, :], unit, inverse, in_width, C)
        tl.store(d_words + place, d_x.to(d_words.dtype.element_ty), mask=inside)
    mine = sums + tl.program_id(0).to(tl.int64) * (4 * C * C + 6 * C)
    _store_matrix(mine, d_wq, channel, channel, C, C)
    _store_matrix(mine + C * C, d_wk, channel, channel, C, C)
    _store_matrix(mine + 2 * C * C, d_wv, channel, channel, C, C)
    _store_matrix(mine + 3 * C * C, d_wo, channel, channel, C, C)
    mine += 4 * C * C + channel
    tl.store(mine, d_bq, mask=in_width)
    tl.store(mine + C, d_bk, mask=in_width)
    tl.store(mine + 2 * C, d_bv, mask=in_width)
    tl.store(mine + 3 * C, d_bo, mask=in_width)
    tl.store(mine + 4 * C, d_gain, mask=in_width)
    tl.store(mine + 5 * C, d_shift, mask=in_width)


@triton_op("vitrine::attend_words", mutates_args=())
def attend_forward(
    words: Tensor, norm_weight: Tensor, norm_bias: Tensor, w_qkv: Tensor, b_qkv: Tensor | None, w_out: Tensor,
    b_out: Tensor, factors: Tensor | None, num_words: int, num_heads: int,
) -> Tensor:  # fmt: skip
    """Return words (R, C) plus their attention within each patch, times a factor per patch if there are any."""
    R, C = words.shape[0], int(words.shape[1])  # a kernel is compiled for each C
    out = torch.empty_like(words)
    rows, rows_of_program, warps = ATTEND
    wrap_triton(_attend)[(triton.cdiv(R, rows_of_program),)](
        words, norm_weight, norm_bias, w_qkv, w_qkv if b_qkv is None else b_qkv, w_out, b_out,
        words if factors is None else factors, out, R, C=C, CHANNELS=padded(C), H=num_heads, W=num_words,
        ROWS=rows, ROWS_OF_PROGRAM=rows_of_program, EPS=EPS, SCALE_LOG2=(C // num_heads) ** -0.5 * LOG2_E,
        HAS_BIAS=b_qkv is not None, HAS_FACTORS=factors is not None, num_warps=warps, num_stages=1,
    )  # fmt: skip
    return out


@triton_op("vitrine::attend_words_backward", mutates_args=())
def attend_backward(
    words: Tensor, d_out: Tensor, norm_weight: Tensor, norm_bias: Tensor, w_qkv: Tensor, b_qkv: Tensor | None,
    w_out: Tensor, factors: Tensor | None, num_words: int, num_heads: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradient of the words and, in one row, those of qkv, out, their biases, and the norm."""
    R, C = words.shape[0], int(words.shape[1])  # a kernel is compiled for each C
    rows, rows_of_program, warps = ATTEND_BACKWARD
    programs = triton.cdiv(R, rows_of_program)
    d_words, sums = torch.empty_like(words), words.new_empty(programs, 4 * C * C + 6 * C, dtype=torch.float32)
    wrap_triton(_attend_backward)[(programs,)](
        words, d_out.contiguous(), norm_weight, norm_bias, w_qkv, w_qkv if b_qkv is None else b_qkv, w_out,
        words if factors is None else factors, d_words, sums, R, C=C, CHANNELS=padded(C), H=num_heads, W=num_words,
        ROWS=rows, ROWS_OF_PROGRAM=rows_of_program, EPS=EPS, SCALE=(C // num_heads) ** -0.5,
        SCALE_LOG2=(C // num_heads) ** -0.5 * LOG2_E, HAS_BIAS=b_qkv is not None,
        HAS_FACTORS=factors is not None, num_warps=warps, num_stages=1,
    )  # fmt: skip
    return d_words, sums.sum(0)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, words: Tensor, norm_weight: Tensor, norm_bias: Tensor, w_qkv: Tensor, b_qkv: Tensor | None,
        w_out: Tensor, b_out: Tensor, factors: Tensor | None, num_words: int, num_heads: int,
    ) -> Tensor:  # fmt: skip
        low = [w.to(words.dtype) for w in (w_qkv, w_out)]
        ctx.save_for_backward(words, norm_weight, norm_bias, w_qkv, b_qkv, w_out, factors)
        ctx.settings = (num_words, num_heads)
        return attend_forward(
            words, norm_weight, norm_bias, low[0], b_qkv, low[1], b_out, factors, *ctx.settings
        )

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        words, norm_weight, norm_bias, w_qkv, b_qkv, w_out, factors = ctx.saved_tensors
        C, kind = words.shape[1], words.dtype
        d_words, sums = attend_backward(
            words,
            d_out,
            norm_weight,
            norm_bias,
            w_qkv.to(kind),
            b_qkv,
            w_out.to(kind),
            factors,
            *ctx.settings,
        )
        d_qkv, d_w_out, d_b_qkv, d_b_out, d_gain, d_shift = sums.split([3 * C * C, C * C, 3 * C, C, C, C])
        return (
            d_words, d_gain, d_shift, d_qkv.view(3 * C, C), d_b_qkv if b_qkv is not None else None,
            d_w_out.view(C, C), d_b_out, None, None, None,
        )  # fmt: skip


def attend_words(words: Tensor, *weights: Tensor | None, num_heads: int) -> Tensor:
    """Return words (patches, W, C) plus their attention within each patch.

    `weights`: gain and shift of the norm, weight and bias of q, k and v together, and of the projection after, in
    fp32; last a factor per patch (patches), or None.
    """
    rows = words.reshape(-1, words.shape[2])
    out: Tensor = _Attend.apply(rows, *weights, words.shape[1], num_heads)  # type: ignore[no-untyped-call]
    return out.view(words.shape)
