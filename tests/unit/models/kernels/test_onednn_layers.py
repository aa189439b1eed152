"""oneDNN's layers against the eager layers with the same weights, and against float64."""

import copy

import pytest
import torch
from torch import nn

from vitrine.models import create_model
from vitrine.models.kernels import onednn_layers, use_kernels
from vitrine.models.kernels.onednn import gelu_and_derivative
from vitrine.models.kernels.onednn_layers import OneDnnMlp, OneDnnSelfAttention

SMALL = {"width": 128, "depth": 2, "num_heads": 2, "mlp_width": 384, "patch_size": 4}
# 24 images of 65 tokens of 128 values are more than the least number of values.
BATCH = 24


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_layers, "is_measured_processor", lambda: True)


def small(**options: object) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = create_model("ViT", image_size=32, num_classes=10, **{**SMALL, **options})
    # A fresh head is zero, and so would all gradients before it be.
    nn.init.normal_(model.head.weight, std=0.1)  # type: ignore[union-attr, arg-type]
    return model


def fast(model: nn.Module) -> nn.Module:
    copied = copy.deepcopy(model)
    use_kernels(copied, device=torch.device("cpu"), precision="auto")
    return copied


def gradients(model: nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
    labels = torch.arange(len(images)) % 10
    nn.functional.cross_entropy(model(images), labels).backward()
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "options", [{}, {"gelu": "erf", "pooling": "average"}, {"qkv_bias": False}, {"attention_norm": True}]
)
def test_gradients_are_as_close_to_float64_as_those_of_the_eager_layers(options: dict[str, object]) -> None:
    model, images = small(**options), torch.randn(BATCH, 3, 32, 32)
    exact = gradients(copy.deepcopy(model).double(), images.double())
    eager, ours = gradients(copy.deepcopy(model), images), gradients(fast(model), images)
    assert ours.keys() == exact.keys()
    for name, gradient in exact.items():
        eager_error = float((eager[name] - gradient).norm() / gradient.norm())
        # Sums in another order: both round at 2^-24; gradients that cancel (biases of keys) are rounding alone.
        limit = max(3 * eager_error, 1e-6)
        assert float((ours[name] - gradient).norm() / gradient.norm()) < limit, name


def test_the_layers_are_used_in_fp32_training_and_nowhere_else() -> None:
    model = fast(small())
    block = model.blocks[0]  # type: ignore[index, union-attr]
    assert isinstance(block.mlp, OneDnnMlp) and isinstance(block.attention, OneDnnSelfAttention)

    def names(output: torch.Tensor) -> str:
        """Name the last two steps of a result's graph."""
        node = output.grad_fn
        return (
            ""
            if node is None
            else f"{node.name()} {[step.name() for step, _ in node.next_functions if step]}"
        )

    tokens = torch.randn(BATCH, 65, 128, requires_grad=True)
    assert "TanhGeluMlp" in names(block.mlp(tokens))
    assert "Linear" in names(block.attention(tokens))
    assert "TanhGeluMlp" not in names(block.mlp(tokens[:1]))  # too few values
    assert "TanhGeluMlp" not in names(block.mlp.double()(tokens.double()))
    block.mlp.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert "TanhGeluMlp" not in names(block.mlp(tokens))
    block.mlp.expand.register_forward_hook(lambda *_: None)
    assert "TanhGeluMlp" not in names(block.mlp(tokens))


def test_frozen_weights_get_no_gradient_and_the_rest_the_same() -> None:
    model, images = small(), torch.randn(BATCH, 3, 32, 32)
    everything = gradients(fast(model), images)
    for name in ("expand.weight", "contract.bias"):
        model.blocks[0].mlp.get_parameter(name).requires_grad_(False)  # type: ignore[index, union-attr]
    some = gradients(fast(model), images)
    missing = {"blocks.0.mlp.expand.weight", "blocks.0.mlp.contract.bias"}
    assert everything.keys() - some.keys() == missing
    assert all(torch.equal(some[name], everything[name]) for name in some)


def test_gelu_and_its_derivative_are_those_of_float64() -> None:
    values = torch.linspace(-12, 12, 200_001)
    exact = values.double().requires_grad_()
    expected = nn.functional.gelu(exact, approximate="tanh")
    expected.sum().backward()
    gelu, derivative = gelu_and_derivative(values.clone())
    # One part in 2^23 of a value of 12, and a few roundings of a derivative near one.
    assert torch.allclose(gelu.double(), expected, rtol=0, atol=2e-6)
    assert torch.allclose(derivative.double(), exact.grad, rtol=0, atol=4e-6)  # type: ignore[arg-type]


@pytest.mark.slow
def test_compiled_layers_give_the_gradients_of_the_eager_ones() -> None:
    model, images = small(), torch.randn(BATCH, 3, 32, 32)
    expected = gradients(fast(model), images)
    # Traced and differentiated as for the compiler, which takes minutes and a C++ compiler.
    ours = gradients(torch.compile(fast(model), backend="aot_eager"), images)
    for name, gradient in expected.items():
        # Gradients that cancel (biases of keys) are rounding alone: measured against the largest of all.
        difference = (ours[f"_orig_mod.{name}"] - gradient).abs().max()
        assert float(difference) < 1e-5 * max(float(value.abs().max()) for value in expected.values()), name
