"""The kernels against the equations written out, in Triton's interpreter where there is no GPU.

The interpreter computes bf16 wrongly (it handles the bits as integers), so fp32 stands for it here; bf16 and fp8 on a
device are tested in test_layers.py.
"""

import copy

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


@pytest.mark.parametrize(("rows", "columns", "relu"), [(2, 4, False), (3, 6, False), (3, 7, True)])
def test_convolution_and_gelu_in_one_pass_equal_torch(rows: int, columns: int, relu: bool) -> None:
    """Strips of 4, 2 and 8 columns, the last wider than the map."""
    from vitrine.models.kernels.convolved_gelu import convolved_gelu

    torch.manual_seed(0)
    shapes = ((2, rows * columns, 20), (20,), (20, 1, 3, 3), (20,))
    inputs = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    product, added, kernel, bias = inputs
    out = convolved_gelu(product, added, kernel, bias, grid=(rows, columns), relu=relu)
    d_out = torch.randn_like(out)
    out.backward(d_out)
    exact = [value.detach().double().requires_grad_() for value in inputs]
    cells = exact[0] + exact[1]
    maps = (cells.relu() if relu else cells).transpose(1, 2).reshape(2, 20, rows, columns)
    expected = F.gelu(F.conv2d(maps, *exact[2:], padding=1, groups=20)).flatten(2).transpose(1, 2)
    expected.backward(d_out.double())
    assert largest_difference(out, expected) < 1e-6
    for value, reference in zip(inputs, exact, strict=True):
        assert value.grad is not None and reference.grad is not None
        assert largest_difference(value.grad, reference.grad) < 3e-6


@pytest.mark.parametrize(("queries", "keys", "heads", "width"), [(197, 49, 2, 64), (600, 12, 1, 32)])
def test_attention_to_reduced_keys_equals_the_equations(
    queries: int, keys: int, heads: int, width: int
) -> None:
    from vitrine.models.kernels.reduced_attention import reduced_attention

    torch.manual_seed(0)
    q = torch.randn(2, queries, heads * width, device=DEVICE, requires_grad=True)
    kv = torch.randn(2, keys, 2, heads, width, device=DEVICE, requires_grad=True)
    out = reduced_attention(q, kv)
    d_out = torch.randn_like(out)
    out.backward(d_out)
    exact_q, exact_kv = (value.detach().double().requires_grad_() for value in (q, kv))
    k, v = exact_kv.permute(2, 0, 3, 1, 4)
    logits = exact_q.view(2, queries, heads, width).transpose(1, 2) @ k.mT * width**-0.5
    expected = (logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
    expected.backward(d_out.double())
    assert q.grad is not None and kv.grad is not None
    assert exact_q.grad is not None and exact_kv.grad is not None
    tolerance = 5e-3 if DEVICE == "cuda" else 1e-5
    assert largest_difference(out, expected) < tolerance
    assert largest_difference(q.grad, exact_q.grad) < tolerance
    assert largest_difference(kv.grad, exact_kv.grad) < tolerance


@pytest.mark.parametrize(
    ("width", "heads", "bias", "has_factors"), [(24, 4, False, False), (12, 2, True, True)]
)
def test_the_inner_transformer_in_four_kernels_equals_its_layers(
    width: int, heads: int, bias: bool, has_factors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The widths of TNT-S and TNT-Ti; a program takes two blocks, the last of them not full."""
    from vitrine.models.kernels import word_attention, word_mlp
    from vitrine.models.tnt import Transformer
    from vitrine.models.tnt_config import TNTConfig

    for module, names in (
        (word_attention, ("ATTEND", "ATTEND_BACKWARD")),
        (word_mlp, ("TRANSFORM", "TRANSFORM_BACKWARD")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, (32, 64, 4))
    torch.manual_seed(0)
    layer = Transformer(
        TNTConfig(qkv_bias=bias), width, num_heads=heads, mlp_width=4 * width, drop_rate=0.0
    ).to(DEVICE)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    exact = copy.deepcopy(layer).double()
    tokens = torch.randn(5, 16, width, device=DEVICE, requires_grad=True)
    factors = torch.rand(5, device=DEVICE) if has_factors else None
    attention, mlp = layer.attention, layer.mlp
    mixed = word_attention.attend_words(
        tokens, layer.norm_1.weight, layer.norm_1.bias, attention.to_qkv.weight, attention.to_qkv.bias,
        attention.to_out.weight, attention.to_out.bias, factors, num_heads=heads,
    )  # fmt: skip
    out = word_mlp.transform_words(
        mixed, layer.norm_2.weight, layer.norm_2.bias, mlp.expand.weight, mlp.expand.bias, mlp.contract.weight,
        mlp.contract.bias, factors,
    )  # fmt: skip
    d_out = torch.randn_like(out)
    out.backward(d_out)
    exact_tokens = tokens.detach().double().requires_grad_()
    share = torch.ones((), dtype=torch.float64) if factors is None else factors.double()[:, None, None]
    middle = exact_tokens + share * exact.attention(exact.norm_1(exact_tokens))
    expected = middle + share * exact.mlp(exact.norm_2(middle))
    expected.backward(d_out.double())
    assert tokens.grad is not None and exact_tokens.grad is not None
    tolerance = 2e-2 if DEVICE == "cuda" else 3e-6
    assert largest_difference(out, expected) < tolerance
    assert largest_difference(tokens.grad, exact_tokens.grad) < tolerance
    for found, reference in zip(layer.parameters(), exact.parameters(), strict=True):
        assert found.grad is not None and reference.grad is not None
        assert largest_difference(found.grad, reference.grad) < tolerance
