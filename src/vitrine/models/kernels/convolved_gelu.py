"""The steps between the products of PVT v2's MLP: bias, depth-wise 3 x 3 convolution, bias and GELU in one pass.

Tokens (B, N, C) are a map whose channels lie next to each other, so nothing is transposed. A program walks down a
strip of the map: it loads one of three rows and keeps two. Backward there are two passes: the first computes the
convolution again, writes its gradient and sums those of kernel and bias; the second is the transposed convolution.
Only the product is kept for them. General kernels read and write a tensor of this size, the largest of the model,
twice as often.

Shapes: B images, N = GH x GW cells, C channels (the hidden width), X columns of a strip, S strips per image.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from vitrine.models.kernels.gelu import _normal

# Values of a tile per thread, warps and stages: of the forward pass and of the two backward; tuned on an H200.
FORWARD, BACKWARD, TRANSPOSED = (2, 4, 1), (2, 4, 1), (4, 4, 1)
STRIP_WIDTHS = (8, 4, 2)
TAPS = 9


@triton.jit
def _cells(
    source,
    added,
    image,
    y,
    x,
    channel,
    GH: tl.constexpr,
    GW: tl.constexpr,
    C: tl.constexpr,
    RELU: tl.constexpr,
):
    """Load cells of one row with their bias; zeros beyond the map, as the convolution pads it."""
    inside = ((x >= 0) & (x < GW) & (y >= 0) & (y < GH))[:, None] & (channel < C)[None, :]
    place = ((image * GH + y) * GW + x)[:, None] * C + channel[None, :]
    values = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    values = tl.where(inside, values + added[None, :], 0.0)
    if RELU:
        values = tl.maximum(values, 0.0)
    return values


@triton.jit
def _three(
    source,
    added,
    image,
    y,
    x,
    channel,
    GH: tl.constexpr,
    GW: tl.constexpr,
    C: tl.constexpr,
    RELU: tl.constexpr,
):
    """Load the cells of one row left of, at and right of the strip."""
    left = _cells(source, added, image, y, x - 1, channel, GH, GW, C, RELU)
    centre = _cells(source, added, image, y, x, channel, GH, GW, C, RELU)
    right = _cells(source, added, image, y, x + 1, channel, GH, GW, C, RELU)
    return left, centre, right


@triton.jit
def _taps(kernel, channel, first, step, C: tl.constexpr):
    """Load three weights of each channel's kernel."""
    at = kernel + channel * 9 + first
    inside = channel < C
    left = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    centre = tl.load(at + step, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(at + 2 * step, mask=inside, other=0.0).to(tl.float32)
    return left[None, :], centre[None, :], right[None, :]


@triton.jit
def _mix(
    product, added, kernel, bias, hidden,
    GH: tl.constexpr, GW: tl.constexpr, C: tl.constexpr, X: tl.constexpr, CHANNELS: tl.constexpr,
    RELU: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    x = tl.program_id(0) * X + tl.arange(0, X)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = tl.program_id(2).to(tl.int64)
    in_strip = (x < GW)[:, None] & (channel < C)[None, :]
    before = tl.load(added + channel, mask=channel < C, other=0.0).to(tl.float32)
    after = tl.load(bias + channel, mask=channel < C, other=0.0).to(tl.float32)[None, :]
    k0, k1, k2 = _taps(kernel, channel, 0, 1, C)
    k3, k4, k5 = _taps(kernel, channel, 3, 1, C)
    k6, k7, k8 = _taps(kernel, channel, 6, 1, C)
    a0, a1, a2 = _three(product, before, image, -1, x, channel, GH, GW, C, RELU)
    b0, b1, b2 = _three(product, before, image, 0, x, channel, GH, GW, C, RELU)
    for y in tl.range(0, GH, num_stages=STAGES):
        c0, c1, c2 = _three(product, before, image, y + 1, x, channel, GH, GW, C, RELU)
        mixed = (
            after + a0 * k0 + a1 * k1 + a2 * k2 + b0 * k3 + b1 * k4 + b2 * k5 + c0 * k6 + c1 * k7 + c2 * k8
        )
        place = ((image * GH + y) * GW + x)[:, None] * C + channel[None, :]
        below, _ = _normal(mixed)
        tl.store(hidden + place, (mixed * below).to(hidden.dtype.element_ty), mask=in_strip)
        a0, a1, a2 = b0, b1, b2
        b0, b1, b2 = c0, c1, c2


@triton.jit
def _mix_backward(
    d_hidden, product, added, kernel, bias, d_mixed, sums,
    GH: tl.constexpr, GW: tl.constexpr, C: tl.constexpr, X: tl.constexpr, CHANNELS: tl.constexpr,
    RELU: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the convolution, and the sums of those of its kernel and bias over a strip."""
    x = tl.program_id(0) * X + tl.arange(0, X)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = tl.program_id(2).to(tl.int64)
    in_strip = (x < GW)[:, None] & (channel < C)[None, :]
    before = tl.load(added + channel, mask=channel < C, other=0.0).to(tl.float32)
    after = tl.load(bias + channel, mask=channel < C, other=0.0).to(tl.float32)[None, :]
    k0, k1, k2 = _taps(kernel, channel, 0, 1, C)
    k3, k4, k5 = _taps(kernel, channel, 3, 1, C)
    k6, k7, k8 = _taps(kernel, channel, 6, 1, C)
    a0, a1, a2 = _three(product, before, image, -1, x, channel, GH, GW, C, RELU)
    b0, b1, b2 = _three(product, before, image, 0, x, channel, GH, GW, C, RELU)
    s0 = tl.zeros((X, CHANNELS), tl.float32)
    s1, s2, s3, s4, s5, s6, s7, s8, s9 = s0, s0, s0, s0, s0, s0, s0, s0, s0
    for y in tl.range(0, GH, num_stages=STAGES):
        c0, c1, c2 = _three(product, before, image, y + 1, x, channel, GH, GW, C, RELU)
        mixed = (
            after + a0 * k0 + a1 * k1 + a2 * k2 + b0 * k3 + b1 * k4 + b2 * k5 + c0 * k6 + c1 * k7 + c2 * k8
        )
        place = ((image * GH + y) * GW + x)[:, None] * C + channel[None, :]
        g = tl.load(d_hidden + place, mask=in_strip, other=0.0).to(tl.float32)
        below, density = _normal(mixed)
        g *= below + mixed * density
        tl.store(d_mixed + place, g.to(d_mixed.dtype.element_ty), mask=in_strip)
        s0 += g * a0
        s1 += g * a1
        s2 += g * a2
        s3 += g * b0
        s4 += g * b1
        s5 += g * b2
        s6 += g * c0
        s7 += g * c1
        s8 += g * c2
        s9 += g
        a0, a1, a2 = b0, b1, b2
        b0, b1, b2 = c0, c1, c2
    own = sums + (image * tl.num_programs(0) + tl.program_id(0)) * 10 * C + channel
    inside = channel < C
    tl.store(own, tl.sum(s0, 0), mask=inside)
    tl.store(own + C, tl.sum(s1, 0), mask=inside)
    tl.store(own + 2 * C, tl.sum(s2, 0), mask=inside)
    tl.store(own + 3 * C, tl.sum(s3, 0), mask=inside)
    tl.store(own + 4 * C, tl.sum(s4, 0), mask=inside)
    tl.store(own + 5 * C, tl.sum(s5, 0), mask=inside)
    tl.store(own + 6 * C, tl.sum(s6, 0), mask=inside)
    tl.store(own + 7 * C, tl.sum(s7, 0), mask=inside)
    tl.store(own + 8 * C, tl.sum(s8, 0), mask=inside)
    tl.store(own + 9 * C, tl.sum(s9, 0), mask=inside)


@triton.jit
def _mix_transposed(
    d_mixed, product, added, kernel, d_product, sums,
    GH: tl.constexpr, GW: tl.constexpr, C: tl.constexpr, X: tl.constexpr, CHANNELS: tl.constexpr,
    RELU: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the product, and its sum over a strip: the convolution with its kernel reversed."""
    x = tl.program_id(0) * X + tl.arange(0, X)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = tl.program_id(2).to(tl.int64)
    in_strip = (x < GW)[:, None] & (channel < C)[None, :]
    before = tl.load(added + channel, mask=channel < C, other=0.0).to(tl.float32)
    none = tl.zeros((CHANNELS,), tl.float32)
    k0, k1, k2 = _taps(kernel, channel, 8, -1, C)
    k3, k4, k5 = _taps(kernel, channel, 5, -1, C)
    k6, k7, k8 = _taps(kernel, channel, 2, -1, C)
    a0, a1, a2 = _three(d_mixed, none, image, -1, x, channel, GH, GW, C, False)
    b0, b1, b2 = _three(d_mixed, none, image, 0, x, channel, GH, GW, C, False)
    total = tl.zeros((X, CHANNELS), tl.float32)
    for y in tl.range(0, GH, num_stages=STAGES):
        c0, c1, c2 = _three(d_mixed, none, image, y + 1, x, channel, GH, GW, C, False)
        d = a0 * k0 + a1 * k1 + a2 * k2 + b0 * k3 + b1 * k4 + b2 * k5 + c0 * k6 + c1 * k7 + c2 * k8
        place = ((image * GH + y) * GW + x)[:, None] * C + channel[None, :]
        if RELU:
            cell = tl.load(product + place, mask=in_strip, other=0.0).to(tl.float32) + before[None, :]
            d = tl.where(cell > 0.0, d, 0.0)
        tl.store(d_product + place, d.to(d_product.dtype.element_ty), mask=in_strip)
        total += tl.where(in_strip, d, 0.0)
        a0, a1, a2 = b0, b1, b2
        b0, b1, b2 = c0, c1, c2
    own = sums + (image * tl.num_programs(0) + tl.program_id(0)) * C + channel
    tl.store(own, tl.sum(total, 0), mask=channel < C)


def strip_width(columns: int) -> int:
    """Return the columns of a strip: the most that divide the map, so that no lane is idle."""
    return next((width for width in STRIP_WIDTHS if columns % width == 0), STRIP_WIDTHS[0])


def tile(setting: tuple[int, int, int], columns: int, channels: int) -> tuple[int, int]:
    """Return columns and channels of a tile: as many values as the threads are given."""
    per_thread, warps, _ = setting
    width = strip_width(columns)
    return width, min(per_thread * warps * 32 // width, triton.next_power_of_2(channels))


@triton_op("vitrine::convolved_gelu", mutates_args=())
def convolved_gelu_forward(
    product: Tensor, added: Tensor, kernel: Tensor, bias: Tensor, rows: int, columns: int, relu: bool
) -> Tensor:
    """Return GELU(conv(product + added) + bias) for a product (B, N, C) on its grid; a ReLU may come before."""
    B, C = product.shape[0], int(product.shape[2])  # a kernel is compiled for each C
    X, channels = tile(FORWARD, columns, C)
    hidden = torch.empty_like(product)
    wrap_triton(_mix)[(triton.cdiv(columns, X), triton.cdiv(C, channels), B)](
        product, added, kernel, bias, hidden, GH=rows, GW=columns, C=C, X=X, CHANNELS=channels, RELU=relu,
        STAGES=FORWARD[2], num_warps=FORWARD[1],
    )  # fmt: skip
    return hidden


@triton_op("vitrine::convolved_gelu_backward", mutates_args=())
def convolved_gelu_backward(
    d_hidden: Tensor, product: Tensor, added: Tensor, kernel: Tensor, bias: Tensor, rows: int, columns: int,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the product (B, N, C), of its bias (C), and of kernel and bias together (10, C)."""
    B, C = product.shape[0], int(product.shape[2])  # a kernel is compiled for each C
    X, channels = tile(BACKWARD, columns, C)
    strips = triton.cdiv(columns, X)
    d_mixed = torch.empty_like(product)
    sums = product.new_empty(B * strips, TAPS + 1, C, dtype=torch.float32)
    wrap_triton(_mix_backward)[(strips, triton.cdiv(C, channels), B)](
        d_hidden.contiguous(), product, added, kernel, bias, d_mixed, sums, GH=rows, GW=columns,
        C=C, X=X, CHANNELS=channels, RELU=relu, STAGES=BACKWARD[2], num_warps=BACKWARD[1],
    )  # fmt: skip
    d_product = torch.empty_like(product)
    X, channels = tile(TRANSPOSED, columns, C)
    of_bias = product.new_empty(B * strips, C, dtype=torch.float32)
    wrap_triton(_mix_transposed)[(strips, triton.cdiv(C, channels), B)](
        d_mixed, product, added, kernel, d_product, of_bias, GH=rows, GW=columns,
        C=C, X=X, CHANNELS=channels, RELU=relu, STAGES=TRANSPOSED[2], num_warps=TRANSPOSED[1],
    )  # fmt: skip
    return d_product, of_bias.sum(0), sums.sum(0)


class _ConvolvedGelu(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, product: Tensor, added: Tensor, kernel: Tensor, bias: Tensor, grid: tuple[int, int], relu: bool
    ) -> Tensor:  # fmt: skip
        product = product.contiguous()
        ctx.save_for_backward(product, added, kernel, bias)
        ctx.grid, ctx.relu = grid, relu
        return convolved_gelu_forward(product, added, kernel, bias, *grid, relu)

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        product, added, kernel, bias = ctx.saved_tensors
        d_product, d_added, sums = convolved_gelu_backward(
            d_hidden, product, added, kernel, bias, *ctx.grid, ctx.relu
        )
        d_kernel = sums[:TAPS].t().reshape(kernel.shape).to(kernel.dtype)
        return d_product, d_added.to(added.dtype), d_kernel, sums[TAPS].to(bias.dtype), None, None


def convolved_gelu(
    product: Tensor, added: Tensor, kernel: Tensor, bias: Tensor, *, grid: tuple[int, int], relu: bool
) -> Tensor:
    """Return GELU(conv(product + added) + bias), kernel (C, 1, 3, 3), for a product (B, N, C) on its grid."""
    out: Tensor = _ConvolvedGelu.apply(product, added, kernel, bias, grid, relu)  # type: ignore[no-untyped-call]
    return out
