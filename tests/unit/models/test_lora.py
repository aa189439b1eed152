"""Adapters: what they add, what is trained, and that merged layers compute the same."""

import pytest
import torch
from torch import nn
from unit.models.small import small_model

from vitrine.errors import ConfigError
from vitrine.models.lora import adaptable_layers, adapters_of, add_adapters, merge_adapters
from vitrine.training.config import TrainingConfig
from vitrine.training.optimizer import freeze

KINDS = [
    "class token",
    "rotary positions (DINOv3)",
    "rotary positions (EVA-02)",
    "attention pooling",
    "PVT",
    "TNT",
]


def stirred(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_new_adapters_change_nothing_and_merged_ones_compute_the_same(kind: str) -> None:
    model = stirred(small_model(kind))
    images = torch.randn(2, 3, *model.config.image_size)  # type: ignore[union-attr]
    names = list(model.state_dict())
    with torch.no_grad():
        before = model(images)
        add_adapters(model, rank=4, alpha=8)
        torch.testing.assert_close(model(images), before, rtol=0, atol=1e-6)
        for layer in adapters_of(model).values():
            layer.lora_b.normal_(std=0.05)
        adapted = model(images)
        assert (adapted - before).abs().max() > 1e-3
        merge_adapters(model)
        torch.testing.assert_close(model(images), adapted, rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == names and not adapters_of(model)


def test_every_dense_layer_of_every_block_is_adapted_and_nothing_else() -> None:
    model = small_model("attention pooling")
    kinds = ("attention.to_qkv", "attention.to_out", "mlp.expand", "mlp.contract")
    assert set(adaptable_layers(model)) == {f"blocks.{i}.{kind}" for i in range(3) for kind in kinds}
    with pytest.raises(ConfigError) as error:
        add_adapters(small_model("BiT for small pictures"), rank=4)
    assert error.value.option == "lora"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lora_rank": 2}, lambda name: name.endswith((".lora_a", ".lora_b"))),
        ({"trains": "biases"}, lambda name: name.endswith(".bias")),
        ({"frozen_blocks": -1}, lambda name: name.startswith(("blocks.2.", "norm."))),
        ({"frozen_blocks": 2}, lambda name: name.startswith(("blocks.2.", "norm."))),
        ({"trains": "head"}, lambda name: False),
    ],
)
def test_only_the_chosen_part_and_the_head_is_trained(config: dict, expected) -> None:  # type: ignore[type-arg, no-untyped-def]
    model = small_model("class token")
    if "lora_rank" in config:
        add_adapters(model, rank=config["lora_rank"])
    freeze(model, TrainingConfig(**config))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    everything = [name for name, _ in model.named_parameters()]
    assert trained == {name for name in everything if expected(name) or name.startswith("head.")}


def test_gradients_reach_adapters_in_the_last_block_whose_tokens_are_not_all_read() -> None:
    model = small_model("class token").train()
    nn.init.normal_(model.head.weight)  # type: ignore[union-attr]
    add_adapters(model, rank=2)
    freeze(model, TrainingConfig(lora_rank=2))
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    last = adapters_of(model)["blocks.2.attention.to_qkv"]
    assert last.lora_b.grad is not None and bool(last.lora_b.grad.any())
    assert last.weight.grad is None
