"""fp32 products on a CPU by oneDNN, and the MLP between them with GELU and its derivative in one pass.

torch multiplies fp32 matrices by MKL, which reaches 92 to 98 GFLOP/s per core on an EPYC (Zen 4) at the shapes of a
ViT-Ti/16; oneDNN reaches 104 to 112 in all three products of a layer, if the narrower matrix of the weight gradient
is transposed first (docs/experiments.md).

Shapes: R rows (all tokens of all images), I inputs, O outputs, M hidden width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# GELU(x) is about x sigmoid(SLOPE (x + CUBIC x^3)) (Hendrycks and Gimpel, arXiv:1606.08415).
SLOPE, CUBIC = 1.5957691216057308, 0.044715
# Values per thread and piece: all operands of a piece stay in the cache of a core.
PIECE = 2**15


@torch.library.custom_op("vitrine::onednn_product", mutates_args=())
def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows (R, I) times the transposed weight (O, I), plus the bias: (R, O)."""
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")  # type: ignore[no-any-return]


@product.register_fake
def _(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0])


@torch.library.custom_op("vitrine::onednn_scaled_product", mutates_args=())
def scaled_product(rows: Tensor, weight: Tensor, factors: Tensor) -> Tensor:
    """Return rows (R, I) times the transposed weight (O, I), each value times its factor (R, O)."""
    return torch.ops.mkldnn._linear_pointwise.binary(rows, factors, weight, None, "mul")  # type: ignore[no-any-return]


@scaled_product.register_fake
def _(rows: Tensor, weight: Tensor, factors: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0])


def input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of a layer's input (R, I) from that of its output (R, O)."""
    return product(grad, weight.t().contiguous())


def weight_gradient(grad: Tensor, rows: Tensor) -> Tensor:
    """Return the gradient of a layer's weight (O, I); only the narrower factor is copied to be transposed."""
    if rows.shape[1] <= grad.shape[1]:
        return product(rows.t().contiguous(), grad.t()).t()
    return product(grad.t().contiguous(), rows.t())


class Linear(torch.autograd.Function):
    """A dense layer whose three products are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Map rows (R, I) to (R, O)."""
        ctx.save_for_backward(rows, weight)
        return product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Map the gradient of the output to those of input, weight and bias."""
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        return (
            input_gradient(grad, weight) if of_rows else None,
            weight_gradient(grad, rows) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


class TanhGeluMlp(torch.autograd.Function):
    """Two dense layers with tanh GELU between; its derivative is kept, and multiplied within a product."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, expand: Tensor, expand_bias: Tensor, contract: Tensor, contract_bias: Tensor
    ) -> Tensor:
        """Map rows (R, I) to (R, I) through the hidden layer (R, M)."""
        hidden, derivative = gelu_and_derivative(product(rows, expand, expand_bias))
        ctx.save_for_backward(rows, hidden, derivative, expand, contract)
        return product(hidden, contract, contract_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Map the gradient of the output to those of input, weights and biases."""
        rows, hidden, derivative, expand, contract = ctx.saved_tensors
        of_rows, of_expand, of_expand_bias, of_contract, of_contract_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        inner = scaled_product(grad, contract.t().contiguous(), derivative)  # (R, M)
        return (
            input_gradient(inner, expand) if of_rows else None,
            weight_gradient(inner, rows) if of_expand else None,
            inner.sum(0) if of_expand_bias else None,
            weight_gradient(grad, hidden) if of_contract else None,
            grad.sum(0) if of_contract_bias else None,
        )


def gelu_and_derivative(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh GELU, which may overwrite the values, and its derivative."""
    if torch.compiler.is_compiling():  # the compiler makes one pass of it
        share = torch.sigmoid(SLOPE * (values + CUBIC * values**3))
        growth = SLOPE * (values + 3 * CUBIC * values**3)
        return values * share, share + growth * share * (1 - share)
    derivative = torch.empty_like(values)
    size = PIECE * max(torch.get_num_threads(), 2)
    room, other_room = torch.empty(2, min(size, values.numel()), dtype=values.dtype)
    for x, slope in zip(values.view(-1).split(size), derivative.view(-1).split(size), strict=True):
        polynomial, share = room[: len(x)], other_room[: len(x)]
        torch.mul(x, x, out=polynomial)
        torch.addcmul(x, polynomial, x, value=CUBIC, out=polynomial)  # x + CUBIC x^3
        torch.mul(polynomial, SLOPE, out=share).sigmoid_()
        # (x + 3 CUBIC x^3) / 3, then times share (1 - share)
        torch.add(polynomial, x, alpha=-2 / 3, out=polynomial)
        torch.ops.aten.sigmoid_backward.grad_input(polynomial, share, grad_input=polynomial)
        torch.add(share, polynomial, alpha=3 * SLOPE, out=slope)
        x.mul_(share)
    return values, derivative
