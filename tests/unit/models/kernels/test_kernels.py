"""The kernels against the equations written out, in Triton's interpreter where there is no GPU.

The interpreter computes bf16 wrongly (it handles the bits as integers), so fp32 stands for it here; bf16 and fp8 on a
device are tested in test_layers.py.
"""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def written_out_attention(qkv: torch.Tensor) -> torch.Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).detach().abs().max() / expected.detach().abs().max())


@pytest.mark.parametrize(
    "shape", [(2, 197, 3, 1, 64), (1, 65, 3, 2, 32), (2, 16, 3, 1, 64), (1, 3, 3, 1, 32)]
)
def test_packed_attention_and_its_gradients_equal_the_equations(shape: tuple[int, ...]) -> None:
    from vitrine.models.kernels.packed_attention import attention_backward, attention_forward

    torch.manual_seed(0)
    qkv = torch.randn(shape, device=DEVICE)
    out, lse = attention_forward(qkv)
    d_out = torch.randn_like(out)
    d_qkv, d_bias = attention_backward(qkv, d_out, lse, None)
    exact = qkv.double().requires_grad_()
    expected = written_out_attention(exact)
    expected.backward(d_out.double())
    assert exact.grad is not None
    # TF32 products on a device keep ten bits; the interpreter computes in fp32.
    tolerance = 5e-3 if DEVICE == "cuda" else 1e-5
    assert largest_difference(out, expected) < tolerance
    assert largest_difference(d_qkv, exact.grad) < tolerance
    assert largest_difference(d_bias, exact.grad.sum((0, 1)).flatten()) < tolerance


@pytest.mark.parametrize(
    ("rows", "tanh"),
    [
        (1, True),
        (1, False),
        (67, True),
        (67, False),
        (300, True),
        pytest.param(300, False, marks=pytest.mark.slow),
    ],
)
def test_bias_and_gelu_and_their_gradients_equal_torch(rows: int, tanh: bool) -> None:
    from vitrine.models.kernels.gelu import bias_gelu

    torch.manual_seed(0)
    product = (3 * torch.randn(rows, 96, device=DEVICE)).requires_grad_()
    bias = torch.randn(96, device=DEVICE, requires_grad=True)
    out = bias_gelu(product, bias, tanh=tanh)
    d_out = torch.randn_like(out)
    out.backward(d_out)
    exact_product, exact_bias = (t.detach().double().requires_grad_() for t in (product, bias))
    expected = F.gelu(exact_product + exact_bias, approximate="tanh" if tanh else "none")
    expected.backward(d_out.double())
    assert product.grad is not None and bias.grad is not None
    assert exact_product.grad is not None and exact_bias.grad is not None
    assert largest_difference(out, expected) < 1e-6
    assert largest_difference(product.grad, exact_product.grad) < 1e-6
    assert largest_difference(bias.grad, exact_bias.grad) < 3e-6  # sums of up to 300 rows in another order


@pytest.mark.parametrize("shape", [(64, 48), (130, 16), (16, 257)])
def test_a_turned_matrix_is_the_transpose_to_the_bit(shape: tuple[int, int]) -> None:
    from vitrine.models.kernels.fp8 import E5M2, turned

    matrix = torch.randn(shape, device=DEVICE).to(E5M2)
    assert torch.equal(turned(matrix).float(), matrix.float().t())


def test_values_beyond_the_largest_number_are_cut_off_there() -> None:
    from vitrine.models.kernels.fp8 import E4M3, E5M2, cast

    values = torch.tensor([-1e9, -1.0, 0.0, 2.0, 1e9], device=DEVICE)
    assert cast(values, 1.0, E4M3).float().tolist() == [-448.0, -1.0, 0.0, 2.0, 448.0]
    assert cast(values, 1.0, E5M2).float().tolist() == [-57344.0, -1.0, 0.0, 2.0, 57344.0]


def test_scales_bring_the_largest_entry_to_the_largest_number() -> None:
    from vitrine.models.kernels.fp8 import HEADROOM, LARGEST_E5M2, gradient_scale, weight_scale

    weight = torch.tensor([[0.5, -2.0], [0.1, 1.0]], device=DEVICE)
    assert float(weight_scale(weight)) * 2.0 == 448.0
    gradient = torch.zeros(256, 4, device=DEVICE)
    gradient[64, 2] = -0.25  # a row that is sampled
    assert float(gradient_scale(gradient)) * 0.25 * HEADROOM == LARGEST_E5M2
    assert torch.isfinite(gradient_scale(torch.zeros(256, 4, device=DEVICE)))
