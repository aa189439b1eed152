"""Bias and GELU between two products: one kernel forward, one for the whole backward pass.

The compiler's tanh limits the speed of its kernel; here GELU is x times a sigmoid, the same function. The backward
kernel reads the incoming gradient and the product once and writes the product's gradient and its sums over rows (the
bias's gradient); the compiler reads both a second time for the sums. Both kernels can write fp8 instead.

Shapes: R rows (all tokens of all images), C columns (the hidden width).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

# Rows per program, rows and columns of its tiles: tuned on an H200 (docs/experiments.md).
FOR_BF16, FOR_FP8 = (64, 2, 1024), (256, 32, 128)
LARGEST_E4M3, LARGEST_E5M2 = 448.0, 57344.0


@triton.jit
def _share(x, TANH: tl.constexpr):
    """Return GELU(x) / x: the normal distribution function at x, or its tanh approximation."""
    if TANH:
        share = tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    else:
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return share


@triton.jit
def _normal(x):
    """Return the normal distribution function at x and the density.

    One exponential serves both (Abramowitz and Stegun 7.1.26, at most 1e-7 off): a third of the instructions of erf.
    """
    density = 0.3989422804014327 * tl.exp2(-0.7213475204444817 * x * x)
    t = 1.0 / (1.0 + 0.2316418882663604 * tl.abs(x))
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    tail = 1.2533141373155003 * density * t * (0.254829592 + t * (-0.284496736 + t * series))
    return tl.where(x > 0, 1.0 - tail, tail), density


@triton.jit
def _gelu(
    product, bias, hidden, R, SCALE_8: tl.constexpr,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TANH: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < R)[:, None] & (column < C)[None, :]
    place = row[:, None] * C + column[None, :]
    added = tl.load(bias + column, mask=column < C, other=0.0).to(tl.float32)
    x = tl.load(product + place, mask=inside, other=0.0).to(tl.float32) + added[None, :]
    y = x * _share(x, TANH) * SCALE_8
    if LARGEST > 0:
        y = tl.minimum(tl.maximum(y, -LARGEST), LARGEST)
    tl.store(hidden + place, y.to(hidden.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_backward(
    d_hidden, product, bias, d_product, sums, scale_8, R,
    C: tl.constexpr, ROWS_SUMMED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TANH: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_columns = column < C
    added = tl.load(bias + column, mask=in_columns, other=0.0).to(tl.float32)
    times = 1.0
    if LARGEST > 0:
        times = tl.load(scale_8)
    total = tl.zeros((COLUMNS,), tl.float32)
    for step in range(0, ROWS_SUMMED, ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS_SUMMED + step + tl.arange(0, ROWS)
        inside = (row < R)[:, None] & in_columns[None, :]
        place = row[:, None] * C + column[None, :]
        x = tl.load(product + place, mask=inside, other=0.0).to(tl.float32) + added[None, :]
        g = tl.load(d_hidden + place, mask=inside, other=0.0).to(tl.float32)
        share = _share(x, TANH)
        if TANH:
            slope = share + x * share * (1.0 - share) * (1.5957691216057308 * (1.0 + 0.134145 * x * x))
        else:
            slope = share + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        d_x = g * slope
        total += tl.sum(d_x, 0)
        if LARGEST > 0:
            d_x = tl.minimum(tl.maximum(d_x * times, -LARGEST), LARGEST)
        tl.store(d_product + place, d_x.to(d_product.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0).to(tl.int64) * C + column, total, mask=in_columns)


@triton_op("vitrine::gelu", mutates_args=())
def gelu_forward(product: Tensor, bias: Tensor, tanh: bool, scale_8: float | None) -> Tensor:
    """Return GELU(product + bias) (R, C), computed in fp32; with `scale_8`, multiplied by it and in e4m3."""
    R, C = product.shape[0], int(product.shape[1])  # a kernel is compiled for each C
    hidden = torch.empty_like(product, dtype=product.dtype if scale_8 is None else torch.float8_e4m3fn)
    _, rows, columns = FOR_BF16 if scale_8 is None else FOR_FP8
    wrap_triton(_gelu)[(triton.cdiv(R, rows), triton.cdiv(C, columns))](
        product, bias, hidden, R, SCALE_8=1.0 if scale_8 is None else scale_8, C=C, ROWS=rows, COLUMNS=columns,
        TANH=tanh, LARGEST=0.0 if scale_8 is None else LARGEST_E4M3,
    )  # fmt: skip
    return hidden


@triton_op("vitrine::gelu_backward", mutates_args=())
def gelu_backward(
    d_hidden: Tensor, product: Tensor, bias: Tensor, tanh: bool, scale_8: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the product (R, C) (with `scale_8`, multiplied by it and in e5m2) and of the bias."""
    R, C = product.shape[0], int(product.shape[1])  # a kernel is compiled for each C
    rows_summed, rows, columns = FOR_BF16 if scale_8 is None else FOR_FP8
    programs = triton.cdiv(R, rows_summed)
    d_product = torch.empty_like(product, dtype=product.dtype if scale_8 is None else torch.float8_e5m2)
    sums = product.new_empty(programs, C, dtype=torch.float32)
    wrap_triton(_gelu_backward)[(programs, triton.cdiv(C, columns))](
        d_hidden.contiguous(), product, bias, d_product, sums, bias if scale_8 is None else scale_8, R,
        C=C, ROWS_SUMMED=rows_summed, ROWS=rows, COLUMNS=columns, TANH=tanh,
        LARGEST=0.0 if scale_8 is None else LARGEST_E5M2,
    )  # fmt: skip
    return d_product, sums.sum(0)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, product: Tensor, bias: Tensor, tanh: bool) -> Tensor:  # type: ignore[override]
        rows = product.reshape(-1, product.shape[-1])
        ctx.save_for_backward(rows, bias)
        ctx.tanh = tanh
        return gelu_forward(rows, bias, tanh, None).view(product.shape)

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        rows, bias = ctx.saved_tensors
        d_product, d_bias = gelu_backward(d_hidden.reshape(rows.shape), rows, bias, ctx.tanh, None)
        return d_product.view(d_hidden.shape), d_bias.to(bias.dtype), None


def bias_gelu(product: Tensor, bias: Tensor, *, tanh: bool) -> Tensor:
    """Return GELU(product + bias)."""
    out: Tensor = _BiasGelu.apply(product, bias, tanh)  # type: ignore[no-untyped-call]
    return out
