"""Layers with kernels against the eager layers with the same weights."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton")
from vitrine.errors import ConfigError
from vitrine.models import create_model
from vitrine.models.kernels import (
    pyramid_layers,
    reduced_attention,
    tnt_layers,
    use_kernels,
    word_attention,
    word_mlp,
)
from vitrine.models.kernels.layers import FastMlp, FastSelfAttention, speed_up

SMALL = {"width": 128, "depth": 3, "num_heads": 2, "mlp_width": 256, "patch_size": 4}


def small(**options: object) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = create_model("ViT", image_size=32, num_classes=10, **{**SMALL, **options})
    # A fresh head is zero, and so would all gradients before it be.
    nn.init.normal_(model.head.weight, std=0.1)  # type: ignore[union-attr, arg-type]
    return model


def test_names_and_weights_stay_and_layers_change() -> None:
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    speed_up(model)
    assert isinstance(model.blocks[0].mlp, FastMlp)  # type: ignore[index, union-attr]
    assert isinstance(model.blocks[0].attention, FastSelfAttention)  # type: ignore[index, union-attr]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_on_a_cpu_the_layers_go_the_eager_way() -> None:
    model = small().eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    assert torch.equal(speed_up(model)(images), expected)


def test_dropout_and_normalised_queries_keep_their_eager_layers() -> None:
    model = speed_up(small(dropout=0.1, qk_norm=True))
    assert not any(isinstance(module, FastMlp | FastSelfAttention) for module in model.modules())


def test_fp8_on_a_cpu_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="fp8 needs a CUDA device") as refusal:
        use_kernels(small(), device=torch.device("cpu"), precision="fp8")
    assert refusal.value.option == "precision"
    assert [advice.value for advice in refusal.value.advice] == ["bf16"]


def gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    return {name: p.grad.double().clone() for name, p in model.named_parameters() if p.grad is not None}


def differences(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact}


@pytest.mark.gpu
@pytest.mark.parametrize(("in_fp8", "tolerance"), [(False, 0.03), (True, 0.30)])
@pytest.mark.parametrize(
    ("options", "compiled"),
    [
        ({}, False),
        ({}, True),
        ({"gelu": "erf", "pooling": "average"}, False),
        ({"qkv_bias": False}, False),
        ({"attention_norm": True}, False),
    ],
)
def test_gradients_are_those_of_fp64(
    in_fp8: bool, tolerance: float, compiled: bool, options: dict[str, object]
) -> None:
    """bf16 keeps 8 bits, e5m2 three: the difference of a whole gradient is a few of their rounding steps."""
    model = small(**options).cuda()
    images, labels = torch.randn(128, 3, 32, 32, device="cuda"), torch.randint(10, (128,), device="cuda")
    exact_model = copy.deepcopy(model).double()
    loss = nn.functional.cross_entropy(exact_model(images.double()), labels)
    loss.backward()
    exact = {name: p.grad for name, p in exact_model.named_parameters() if p.grad is not None}
    eager = differences(gradients(model, images, labels), exact)
    speed_up(model, in_fp8=in_fp8)
    fast = gradients(torch.compile(model) if compiled else model, images, labels)
    fast = {name.removeprefix("_orig_mod."): value for name, value in fast.items()}
    for name, difference in differences(fast, exact).items():
        # Gradients that cancel (biases of keys have none at all) are rounding alone in either way.
        if eager[name] < tolerance:
            assert difference < tolerance, (name, difference, eager[name])


PYRAMID = {
    "widths": (32, 64, 64, 64), "num_heads": (1, 2, 2, 2), "depths": (1, 1, 1, 1), "mlp_ratios": (2, 2, 2, 2),
}  # fmt: skip
DESCENDANTS = [
    ("PVT-v2-B0", PYRAMID | {"reductions": (4, 2, 1, 1), "image_size": 36}),
    ("PVT-v2-B2-Li", PYRAMID | {"image_size": 32}),
    ("PVT-Tiny", PYRAMID | {"reductions": (4, 2, 1, 1), "image_size": 32}),
    ("TNT-S", {"depth": 2, "image_size": 32}),
]


def descendant(name: str, options: dict[str, Any]) -> nn.Module:
    """Build a small model with values in every parameter, so that a layer left out would show."""
    torch.manual_seed(0)
    model: nn.Module = create_model(name, num_classes=5, **options)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=0.3 if parameter.ndim == 1 else 0.0, std=0.1)
    return model


def backward(model: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    logits = model(images)
    (logits * torch.linspace(-1, 1, logits.numel(), device=logits.device).view_as(logits)).sum().backward()
    return logits.detach(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize(("name", "options"), DESCENDANTS, ids=[name for name, _ in DESCENDANTS])
def test_descendants_with_kernels_have_the_gradients_of_their_layers(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32 in the interpreter, as if on a device."""
    for module in (pyramid_layers, tnt_layers):
        monkeypatch.setattr(module, "is_low_precision", lambda tokens: True)
    monkeypatch.setattr(tnt_layers, "KIND", torch.float32)
    monkeypatch.setattr(reduced_attention, "suits", lambda tokens, num_keys, num_heads: True)
    monkeypatch.setattr(tnt_layers, "suits", lambda tokens, num_heads, hidden: True)
    for module, settings in (
        (word_attention, ("ATTEND", "ATTEND_BACKWARD")),
        (word_mlp, ("TRANSFORM", "TRANSFORM_BACKWARD")),
    ):
        for setting in settings:
            monkeypatch.setattr(module, setting, (32, 32, 4))
    model = descendant(name, options)
    fast = speed_up(copy.deepcopy(model))
    assert any(type(module).__name__.startswith("Fast") for module in fast.modules())
    images = torch.randn(1, 3, options["image_size"], options["image_size"])
    (expected, exact), (found, gradients) = backward(model, images), backward(fast, images)
    assert float((found - expected).abs().max() / expected.abs().max()) < 2e-6
    assert gradients.keys() == exact.keys()
    largest = max(float(gradient.abs().max()) for gradient in exact.values())
    for layer, gradient in exact.items():
        # Next to gradients that cancel, those of the model's others are the scale of rounding.
        scale = max(float(gradient.abs().max()), 1e-2 * largest)
        assert float((gradients[layer] - gradient).abs().max()) / scale < 1e-4, layer


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("name", "options"), DESCENDANTS, ids=[name for name, _ in DESCENDANTS])
def test_descendants_on_a_device_have_the_gradients_of_fp32(
    name: str, options: dict[str, Any], compiled: bool
) -> None:
    model = descendant(name, options).cuda()
    size = options["image_size"]
    images, labels = torch.randn(64, 3, size, size, device="cuda"), torch.randint(5, (64,), device="cuda")
    nn.functional.cross_entropy(model(images), labels).backward()
    exact = {n: p.grad.double().clone() for n, p in model.named_parameters() if p.grad is not None}
    eager = differences(gradients(model, images, labels), exact)
    fast = speed_up(model)
    found = gradients(torch.compile(fast) if compiled else fast, images, labels)
    found = {layer.removeprefix("_orig_mod."): value for layer, value in found.items()}
    for layer, difference in differences(found, exact).items():
        assert difference < max(1.5 * eager[layer], 0.03), (layer, difference, eager[layer])


@pytest.mark.gpu
def test_two_steps_from_the_same_weights_are_equal_to_the_bit() -> None:
    model = speed_up(small().cuda(), in_fp8=True)
    images, labels = torch.randn(128, 3, 32, 32, device="cuda"), torch.randint(10, (128,), device="cuda")
    first, second = gradients(model, images, labels), gradients(model, images, labels)
    assert all(torch.equal(first[name], second[name]) for name in first)
