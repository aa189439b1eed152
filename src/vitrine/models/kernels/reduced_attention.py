"""Attention from many queries to at most 64 keys, as in pyramids: all keys of a head fit into one program.

General kernels loop over keys, add up the queries' gradients in fp32 memory and need queries in another order
in memory. Here each program holds the keys and values of a head and loops over queries, read and written where the
projections have them.

Shapes: B images, N queries, S keys, H heads, K channels per head; q is (B, N, H K), `kv` is (B, S, 2, H, K).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from vitrine.models.kernels.packed_attention import HEAD_WIDTHS, LOG2_E

MOST_KEYS = 64
# Queries per program, queries per block, warps, stages.
FORWARD, BACKWARD = (128, 64, 4, 2), (512, 64, 4, 2)


@triton.jit
def _forward(
    q, kv, out, lse,
    N: tl.constexpr, S: tl.constexpr, H: tl.constexpr, K: tl.constexpr, KEYS: tl.constexpr,
    SHARE: tl.constexpr, QUERIES: tl.constexpr, SCALE_LOG2: tl.constexpr,
):  # fmt: skip
    """One program mixes a share of the queries of one head of one image."""
    image, head = tl.program_id(1).to(tl.int64) // H, tl.program_id(1) % H
    width: tl.constexpr = H * K
    key, channel = tl.arange(0, KEYS), tl.arange(0, K)
    inside = key < S
    at = (image * S + key)[:, None] * 2 * width + head * K + channel[None, :]
    k = tl.load(kv + at, mask=inside[:, None], other=0.0)
    v = tl.load(kv + width + at, mask=inside[:, None], other=0.0)
    for start in range(0, SHARE, QUERIES):
        row = tl.program_id(0) * SHARE + start + tl.arange(0, QUERIES)
        there = row < N
        place = (image * N + row)[:, None] * width + head * K + channel[None, :]
        query = tl.load(q + place, mask=there[:, None], other=0.0)
        logits = tl.dot(query, tl.trans(k)) * SCALE_LOG2
        logits = tl.where(inside[None, :], logits, float("-inf"))
        largest = tl.max(logits, 1)
        p = tl.exp2(logits - largest[:, None])
        total = tl.sum(p, 1)
        mixed = tl.dot(p.to(v.dtype), v) / total[:, None]
        tl.store(out + place, mixed.to(out.dtype.element_ty), mask=there[:, None])
        tl.store(lse + tl.program_id(1).to(tl.int64) * N + row, largest + tl.log2(total), mask=there)


@triton.jit
def _backward(
    q, kv, d_out, lse, d_q, d_kv,
    N: tl.constexpr, S: tl.constexpr, H: tl.constexpr, K: tl.constexpr, KEYS: tl.constexpr,
    SHARE: tl.constexpr, QUERIES: tl.constexpr, SCALE: tl.constexpr, SCALE_LOG2: tl.constexpr,
):  # fmt: skip
    """The gradients of a share of the queries, and what they add to those of keys and values."""
    image, head = tl.program_id(1).to(tl.int64) // H, tl.program_id(1) % H
    width: tl.constexpr = H * K
    key, channel = tl.arange(0, KEYS), tl.arange(0, K)
    inside = key < S
    of_key = key[:, None] * 2 * width + head * K + channel[None, :]
    k = tl.load(kv + image * S * 2 * width + of_key, mask=inside[:, None], other=0.0)
    v = tl.load(kv + image * S * 2 * width + width + of_key, mask=inside[:, None], other=0.0)
    d_k = tl.zeros((KEYS, K), tl.float32)
    d_v = tl.zeros((KEYS, K), tl.float32)
    for start in range(0, SHARE, QUERIES):
        row = tl.program_id(0) * SHARE + start + tl.arange(0, QUERIES)
        there = row < N
        place = (image * N + row)[:, None] * width + head * K + channel[None, :]
        query = tl.load(q + place, mask=there[:, None], other=0.0)
        d_o = tl.load(d_out + place, mask=there[:, None], other=0.0)
        row_lse = tl.load(lse + tl.program_id(1).to(tl.int64) * N + row, mask=there, other=float("inf"))
        # Transposed throughout: (KEYS, QUERIES) products feed the sums over queries without another transpose.
        p = tl.exp2(tl.dot(k, tl.trans(query)) * SCALE_LOG2 - row_lse[None, :])
        p = tl.where(inside[:, None], p, 0.0)
        d_v += tl.dot(p.to(v.dtype), d_o)
        d_p = tl.dot(v, tl.trans(d_o))
        d_logits = (p * (d_p - tl.sum(p * d_p, 0)[None, :]) * SCALE).to(v.dtype)
        d_k += tl.dot(d_logits, query)
        tl.store(d_q + place, tl.dot(tl.trans(d_logits), k).to(d_q.dtype.element_ty), mask=there[:, None])
    # One part per share, summed by the caller in a fixed order: a step is reproducible bit for bit.
    own = d_kv + (tl.program_id(0) * (tl.num_programs(1) // H) + image) * S * 2 * width + of_key
    tl.store(own, d_k, mask=inside[:, None])
    tl.store(own + width, d_v, mask=inside[:, None])


def suits(tokens: Tensor, *, num_keys: int, num_heads: int) -> bool:
    """Return whether the kernels support `num_keys` keys and the heads of tokens (B, N, D)."""
    return tokens.is_cuda and num_keys <= MOST_KEYS and tokens.shape[-1] // num_heads in HEAD_WIDTHS


def padded(keys: int) -> int:
    """Return the keys of a program: a power of two that a matrix product accepts."""
    return max(triton.next_power_of_2(keys), 16)


@triton_op("vitrine::reduced_attention", mutates_args=())
def attention_forward(q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mixed heads (B, N, H K) and, for the backward pass, log2 of each row's sum (B, H, N)."""
    B, N, (S, _, H, K) = (
        q.shape[0],
        int(q.shape[1]),
        map(int, kv.shape[1:]),
    )  # a kernel is compiled for each of these
    out = torch.empty_like(q)
    lse = q.new_empty(B, H, N, dtype=torch.float32)
    share, queries, warps, stages = FORWARD
    wrap_triton(_forward)[(triton.cdiv(N, share), B * H)](
        q, kv, out, lse, N=N, S=S, H=H, K=K, KEYS=padded(S), SHARE=share, QUERIES=queries,
        SCALE_LOG2=K**-0.5 * LOG2_E, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, lse


@triton_op("vitrine::reduced_attention_backward", mutates_args=())
def attention_backward(q: Tensor, kv: Tensor, d_out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of q (B, N, H K) and, in fp32, of kv (B, S, 2, H, K)."""
    B, N, (S, _, H, K) = (
        q.shape[0],
        int(q.shape[1]),
        map(int, kv.shape[1:]),
    )  # a kernel is compiled for each of these
    share, queries, warps, stages = BACKWARD
    shares = triton.cdiv(N, share)
    d_q = torch.empty_like(q)
    d_kv = kv.new_empty(shares, *kv.shape, dtype=torch.float32)
    wrap_triton(_backward)[(shares, B * H)](
        q, kv, d_out.contiguous(), lse, d_q, d_kv, N=N, S=S, H=H, K=K, KEYS=padded(S), SHARE=share,
        QUERIES=queries, SCALE=K**-0.5, SCALE_LOG2=K**-0.5 * LOG2_E, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return d_q, d_kv.sum(0)


class _ReducedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor) -> Tensor:  # type: ignore[override]
        q, kv = q.contiguous(), kv.contiguous()
        out, lse = attention_forward(q, kv)
        ctx.save_for_backward(q, kv, lse)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, kv, lse = ctx.saved_tensors
        d_q, d_kv = attention_backward(q, kv, d_out, lse)
        return d_q, d_kv.to(kv.dtype)


def reduced_attention(q: Tensor, kv: Tensor) -> Tensor:
    """Return the mixed heads (B, N, H K) of queries (B, N, H K) by keys and values (B, S, 2, H, K) (eqs. 6 and 7)."""
    out: Tensor = _ReducedAttention.apply(q, kv)  # type: ignore[no-untyped-call]
    return out
