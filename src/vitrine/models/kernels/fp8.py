"""The large products of an encoder layer in fp8, forward and backward: tokens and weights in e4m3, gradients in e5m2.

Scales are computed in the step itself, so nothing is kept between steps: a weight's scale from its largest entry, a
gradient's from a sample of its rows with headroom (e5m2 spans 2^30); the tokens' scale is fixed (after LayerNorm and
GELU, values are of order one). Values outside are clamped to the largest number. The hardware multiplies rows by
rows only, so the weights' gradients need transposed copies: one pass over one byte per value.

Shapes: B images, N tokens, D width; R = B N rows.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from vitrine.models.kernels.gelu import LARGEST_E4M3, LARGEST_E5M2, gelu_backward, gelu_forward
from vitrine.models.kernels.packed_attention import attention_backward, attention_forward

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TOKEN_SCALE = 4.0  # tokens up to 112 fit; below 0.004 they lose precision
# Every SAMPLED-th row determines a gradient's scale; values up to HEADROOM times the largest sampled one still fit.
SAMPLED, HEADROOM = 64, 16.0
TURNED_TILE, TURNED_WARPS = (64, 128), 8


def suits(tokens: Tensor) -> bool:
    """Return whether rows and device fit: fp8 products need multiples of 16 and are faster only when large."""
    rows = tokens.numel() // tokens.shape[-1]
    return tokens.is_cuda and tokens.shape[-1] % 16 == 0 and rows % 16 == 0 and rows >= 4096


def product(a: Tensor, b: Tensor, *, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b^T + bias in bf16 for fp8 a (R, K) and b (C, K), each already multiplied by its scale."""
    return torch._scaled_mm(
        a, b.t(), scale_a=a_scale.reciprocal(), scale_b=b_scale.reciprocal(), bias=bias,
        out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip


def cast(values: Tensor, scale: Tensor | float, kind: torch.dtype) -> Tensor:
    """Return values times scale in fp8, clamped to the largest number."""
    most = LARGEST_E4M3 if kind == E4M3 else LARGEST_E5M2
    return (values.float() * scale).clamp(-most, most).to(kind)


def weight_scale(weight: Tensor) -> Tensor:
    """Return the scale that maps the largest entry to the largest fp8 number."""
    return LARGEST_E4M3 / weight.detach().abs().amax().float().clamp_min(1e-12)


def gradient_scale(gradient: Tensor) -> Tensor:
    """Return a scale for rows (R, C) from a sample of them."""
    seen = gradient[::SAMPLED].abs().amax().float()
    return LARGEST_E5M2 / HEADROOM / seen.clamp_min(1e-30)


def token_scale(like: Tensor) -> Tensor:
    """Return the tokens' scale as a tensor."""
    return like.new_full((), TOKEN_SCALE, dtype=torch.float32)


@triton.jit
def _turn(
    source, target, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < R)[:, None] & (column < C)[None, :]
    values = tl.load(source + row[:, None] * C + column[None, :], mask=inside, other=0)
    tl.store(target + column[:, None] * R + row[None, :], tl.trans(values), mask=tl.trans(inside))


@triton_op("vitrine::turned", mutates_args=())
def turned(matrix: Tensor) -> Tensor:
    """Return a transposed copy (C, R) of an fp8 matrix (R, C)."""
    R, C = matrix.shape
    target = matrix.new_empty(C, R)
    rows, columns = TURNED_TILE
    wrap_triton(_turn)[(triton.cdiv(R, rows), triton.cdiv(C, columns))](
        matrix.view(torch.int8),
        target.view(torch.int8),
        R,
        C,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=TURNED_WARPS,
    )
    return target


class _Mlp(torch.autograd.Function):
    """W2 GELU(W1 x + b1) + b2 on rows (R, D)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, tanh: bool
    ) -> Tensor:
        s1, s2, s_token = weight_scale(w1), weight_scale(w2), token_scale(x)
        x_8 = cast(x, TOKEN_SCALE, E4M3)
        expanded = product(x_8, cast(w1, s1, E4M3), a_scale=s_token, b_scale=s1)
        hidden_8 = gelu_forward(expanded, b1, tanh, TOKEN_SCALE)
        ctx.save_for_backward(x_8, expanded, hidden_8, w1, b1, w2, s1, s2)
        ctx.tanh = tanh
        return product(hidden_8, cast(w2, s2, E4M3), a_scale=s_token, b_scale=s2, bias=b2.to(torch.bfloat16))

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x_8, expanded, hidden_8, w1, b1, w2, s1, s2 = ctx.saved_tensors
        s_token = token_scale(d_out)
        scale = gradient_scale(d_out)
        d_out_8 = cast(d_out, scale, E5M2)
        d_hidden = product(d_out_8, cast(w2.t(), s2, E4M3).contiguous(), a_scale=scale, b_scale=s2)
        d_w2 = product(turned(d_out_8), turned(hidden_8), a_scale=scale, b_scale=s_token)
        scale = gradient_scale(d_hidden)
        d_expanded_8, d_b1 = gelu_backward(d_hidden, expanded, b1, ctx.tanh, scale)
        d_x = product(d_expanded_8, cast(w1.t(), s1, E4M3).contiguous(), a_scale=scale, b_scale=s1)
        d_w1 = product(turned(d_expanded_8), turned(x_8), a_scale=scale, b_scale=s_token)
        d_b2 = d_out.sum(0, dtype=torch.float32)
        return d_x, d_w1.to(w1.dtype), d_b1.to(b1.dtype), d_w2.to(w2.dtype), d_b2.to(b1.dtype), None


class _Attention(torch.autograd.Function):
    """Mixed heads of tokens x (B, N, D): the projection to q, k and v, and attention."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, num_heads: int
    ) -> Tensor:
        B, N, D = x.shape
        scale = weight_scale(weight)
        x_8 = cast(x.reshape(-1, D), TOKEN_SCALE, E4M3)
        added = None if bias is None else bias.to(torch.bfloat16)
        qkv = product(x_8, cast(weight, scale, E4M3), a_scale=token_scale(x), b_scale=scale, bias=added)
        out, lse = attention_forward(qkv.view(B, N, 3, num_heads, -1))
        ctx.save_for_backward(x_8, qkv, weight, lse, scale)
        ctx.num_heads, ctx.has_bias = num_heads, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x_8, qkv, weight, lse, s_weight = ctx.saved_tensors
        B, N, D = d_out.shape
        # Gradients of q, k and v mix those of the heads with weights of at most one: the same order or smaller.
        scale = gradient_scale(d_out.reshape(-1, D))
        d_qkv, d_bias = attention_backward(qkv.view(B, N, 3, ctx.num_heads, -1), d_out, lse, scale)
        d_qkv = d_qkv.view(-1, 3 * D)
        d_x = product(d_qkv, cast(weight.t(), s_weight, E4M3).contiguous(), a_scale=scale, b_scale=s_weight)
        d_weight = product(turned(d_qkv), turned(x_8), a_scale=scale, b_scale=token_scale(d_out))
        return (
            d_x.view(B, N, D),
            d_weight.to(weight.dtype),
            d_bias.to(weight.dtype) if ctx.has_bias else None,
            None,
        )


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, *, tanh: bool) -> Tensor:
    """Return W2 GELU(W1 x + b1) + b2 for tokens (B, N, D)."""
    rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
    out: Tensor = _Mlp.apply(rows, w1, b1, w2, b2, tanh)  # type: ignore[no-untyped-call]
    return out.view(x.shape)


def project_and_attend(x: Tensor, weight: Tensor, bias: Tensor | None, *, num_heads: int) -> Tensor:
    """Return the mixed heads (B, N, D) of tokens (B, N, D) (eqs. 5 to 7)."""
    out: Tensor = _Attention.apply(x.to(torch.bfloat16), weight, bias, num_heads)  # type: ignore[no-untyped-call]
    return out
