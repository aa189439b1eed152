"""Attention on packed queries, keys and values for up to 256 tokens.

General kernels return three gradients; a second pass concatenates them and a third sums them for the bias. These
kernels write them where the projection's backward pass reads them, in bf16 or fp8, and sum them in the same pass.

Shapes: B images, N tokens, H heads, K channels per head; `qkv` is (B, N, 3, H, K).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

MOST_TOKENS = 256
HEAD_WIDTHS = (32, 64)
LOG2_E = 1.4426950408889634
# Tuned on an H200 with 197 tokens (docs/experiments.md): queries per block, warps, stages.
FORWARD = (64, 4, 2)
BACKWARD = (32, 8, 3)


@triton.jit
def _forward(
    qkv, out, lse,
    N: tl.constexpr, H: tl.constexpr, K: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
    SCALE_LOG2: tl.constexpr,
):  # fmt: skip
    """One program mixes all tokens of one head of one image."""
    image, head = tl.program_id(0) // H, tl.program_id(0) % H
    width: tl.constexpr = H * K
    base = qkv + image.to(tl.int64) * N * 3 * width + head * K
    key, channel = tl.arange(0, KEYS), tl.arange(0, K)
    inside = key < N
    at = key[:, None] * 3 * width + channel[None, :]
    k = tl.load(base + width + at, mask=inside[:, None], other=0.0)
    v = tl.load(base + 2 * width + at, mask=inside[:, None], other=0.0)
    for start in range(0, N, QUERIES):
        row = start + tl.arange(0, QUERIES)
        there = row < N
        q = tl.load(base + row[:, None] * 3 * width + channel[None, :], mask=there[:, None], other=0.0)
        logits = tl.dot(q, tl.trans(k)) * SCALE_LOG2
        logits = tl.where(inside[None, :], logits, float("-inf"))
        largest = tl.max(logits, 1)
        p = tl.exp2(logits - largest[:, None])
        total = tl.sum(p, 1)
        mixed = tl.dot(p.to(qkv.dtype.element_ty), v) / total[:, None]
        place = out + image.to(tl.int64) * N * width + row[:, None] * width + head * K + channel[None, :]
        tl.store(place, mixed.to(out.dtype.element_ty), mask=there[:, None])
        tl.store(lse + tl.program_id(0) * N + row, largest + tl.log2(total), mask=there)


@triton.jit
def _backward(
    qkv, d_out, lse, d_qkv, d_bias, scale_8,
    N: tl.constexpr, H: tl.constexpr, K: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
    SCALE: tl.constexpr, SCALE_LOG2: tl.constexpr, FOR_FP8: tl.constexpr,
):  # fmt: skip
    """One program holds all keys of one head of one image and their gradients, and loops over blocks of queries."""
    image, head = tl.program_id(0) // H, tl.program_id(0) % H
    width: tl.constexpr = H * K
    base = qkv + image.to(tl.int64) * N * 3 * width + head * K
    d_base = d_qkv + image.to(tl.int64) * N * 3 * width + head * K
    kind = qkv.dtype.element_ty
    d_kind = d_qkv.dtype.element_ty
    times = 1.0
    if FOR_FP8:
        times = tl.load(scale_8)
    key, channel = tl.arange(0, KEYS), tl.arange(0, K)
    inside = key < N
    at = key[:, None] * 3 * width + channel[None, :]
    k = tl.load(base + width + at, mask=inside[:, None], other=0.0)
    v = tl.load(base + 2 * width + at, mask=inside[:, None], other=0.0)
    d_k = tl.zeros((KEYS, K), tl.float32)
    d_v = tl.zeros((KEYS, K), tl.float32)
    d_q_sum = tl.zeros((K,), tl.float32)
    for start in range(0, N, QUERIES):
        row = start + tl.arange(0, QUERIES)
        there = row < N
        of_row = row[:, None] * 3 * width + channel[None, :]
        q = tl.load(base + of_row, mask=there[:, None], other=0.0)
        place = d_out + image.to(tl.int64) * N * width + row[:, None] * width + head * K + channel[None, :]
        d_o = tl.load(place, mask=there[:, None], other=0.0)
        row_lse = tl.load(lse + tl.program_id(0) * N + row, mask=there, other=float("inf"))
        # Transposed throughout: (KEYS, QUERIES) products feed the sums over queries without another transpose.
        p = tl.exp2(tl.dot(k, tl.trans(q)) * SCALE_LOG2 - row_lse[None, :])
        p = tl.where(inside[:, None], p, 0.0)
        d_v += tl.dot(p.to(kind), d_o)
        d_p = tl.dot(v, tl.trans(d_o))
        # All keys are here, so the row's sum of P dP is too, and the output need not be read again.
        d_logits = (p * (d_p - tl.sum(p * d_p, 0)[None, :]) * SCALE).to(kind)
        d_k += tl.dot(d_logits, q)
        d_q = tl.dot(tl.trans(d_logits), k)
        tl.store(d_base + of_row, _cut(d_q * times, FOR_FP8).to(d_kind), mask=there[:, None])
        d_q_sum += tl.sum(d_q, 0)
    tl.store(d_base + width + at, _cut(d_k * times, FOR_FP8).to(d_kind), mask=inside[:, None])
    tl.store(d_base + 2 * width + at, _cut(d_v * times, FOR_FP8).to(d_kind), mask=inside[:, None])
    # One row per image, summed by the caller in a fixed order: a step is reproducible bit for bit.
    own = d_bias + image.to(tl.int64) * 3 * width + head * K + channel
    tl.store(own, d_q_sum)
    tl.store(own + width, tl.sum(d_k, 0))
    tl.store(own + 2 * width, tl.sum(d_v, 0))


@triton.jit
def _cut(values, FOR_FP8: tl.constexpr):
    """Clamp to the largest number of e5m2."""
    if FOR_FP8:
        values = tl.minimum(tl.maximum(values, -57344.0), 57344.0)
    return values


def suits(tokens: Tensor, *, num_heads: int) -> bool:
    """Return whether the kernels support tokens (B, N, D)."""
    return tokens.is_cuda and tokens.shape[1] <= MOST_TOKENS and tokens.shape[2] // num_heads in HEAD_WIDTHS


@triton_op("vitrine::packed_attention", mutates_args=())
def attention_forward(qkv: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mixed heads (B, N, H K) and, for the backward pass, log2 of each row's sum (B, H, N)."""
    B, (N, _, H, K) = qkv.shape[0], map(int, qkv.shape[1:])  # a kernel is compiled for each of these
    out = qkv.new_empty(B, N, H * K)
    lse = qkv.new_empty(B, H, N, dtype=torch.float32)
    queries, warps, stages = FORWARD
    wrap_triton(_forward)[(B * H,)](
        qkv, out, lse, N=N, H=H, K=K, KEYS=max(triton.next_power_of_2(N), 16), QUERIES=queries,
        SCALE_LOG2=K**-0.5 * LOG2_E, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, lse


@triton_op("vitrine::packed_attention_backward", mutates_args=())
def attention_backward(
    qkv: Tensor, d_out: Tensor, lse: Tensor, scale_8: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of qkv (with `scale_8`, multiplied by it and in e5m2) and of its bias (3 H K)."""
    d_out = d_out.contiguous()
    B, (N, _, H, K) = qkv.shape[0], map(int, qkv.shape[1:])  # a kernel is compiled for each of these
    d_qkv = torch.empty_like(qkv, dtype=qkv.dtype if scale_8 is None else torch.float8_e5m2)
    d_bias = qkv.new_empty(B, 3 * H * K, dtype=torch.float32)
    queries, warps, stages = BACKWARD
    wrap_triton(_backward)[(B * H,)](
        qkv, d_out, lse, d_qkv, d_bias, lse if scale_8 is None else scale_8,
        N=N, H=H, K=K, KEYS=max(triton.next_power_of_2(N), 16), QUERIES=queries,
        SCALE=K**-0.5, SCALE_LOG2=K**-0.5 * LOG2_E, FOR_FP8=scale_8 is not None,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return d_qkv, d_bias.sum(0)


class _ProjectAndAttend(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, num_heads: int
    ) -> Tensor:
        B, N, D = x.shape
        rows = x.reshape(-1, D)
        qkv = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
        out, lse = attention_forward(qkv.view(B, N, 3, num_heads, -1))
        ctx.save_for_backward(rows, weight, qkv, lse)
        ctx.num_heads, ctx.has_bias = num_heads, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        rows, weight, qkv, lse = ctx.saved_tensors
        B, N, D = d_out.shape
        d_qkv, d_bias = attention_backward(qkv.view(B, N, 3, ctx.num_heads, -1), d_out, lse, None)
        d_qkv = d_qkv.view(-1, 3 * D)
        d_x = (d_qkv @ weight).view(B, N, D)
        return d_x, d_qkv.t() @ rows, d_bias.to(weight.dtype) if ctx.has_bias else None, None


def project_and_attend(x: Tensor, weight: Tensor, bias: Tensor | None, *, num_heads: int) -> Tensor:
    """Return the mixed heads (B, N, D) of tokens (B, N, D) (eqs. 5 to 7), all in bf16."""
    kind = torch.bfloat16
    out: Tensor = _ProjectAndAttend.apply(  # type: ignore[no-untyped-call]
        x.to(kind), weight.to(kind), None if bias is None else bias.to(kind), num_heads
    )
    return out
