"""What weight decay means, who gets it, and what each optimizer does."""

import pytest
import torch
from torch import nn
from unit.models.small import VIT

from vitrine.errors import ConfigError
from vitrine.models import create_model
from vitrine.training.config import TrainingConfig
from vitrine.training.muon import orthogonalised
from vitrine.training.optimizer import Layers, make_optimizer, parameter_groups


class OneWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2, bias=False).double()


def stepped(
    config: TrainingConfig, gradients: list[torch.Tensor], rate: float
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = OneWeight()
    before = model.head.weight.detach().clone()
    optimizer = make_optimizer(model, config)
    for gradient in gradients:
        model.head.weight.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        optimizer.step()
    return before, model.head.weight.detach()


GRADIENTS = [
    torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(4)
]


def test_adamw_equals_the_update_written_out_with_decay_times_the_learning_rate() -> None:
    rate, decay = 0.01, 0.1
    before, after = stepped(TrainingConfig(optimizer="adamw", weight_decay=decay), GRADIENTS, rate)
    w, m, v = before.clone(), torch.zeros_like(before), torch.zeros_like(before)
    for t, g in enumerate(GRADIENTS, start=1):
        w = w - rate * decay * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    torch.testing.assert_close(after, w, rtol=1e-10, atol=1e-12)


def test_sgd_equals_the_update_written_out_with_decoupled_decay() -> None:
    rate, decay = 0.1, 0.05
    config = TrainingConfig(optimizer="sgd", weight_decay=decay, momentum=0.9)
    before, after = stepped(config, GRADIENTS, rate)
    w, m = before.clone(), torch.zeros_like(before)
    for g in GRADIENTS:
        w = w - rate * decay * w
        m = 0.9 * m + g
        w = w - rate * m
    torch.testing.assert_close(after, w, rtol=1e-10, atol=1e-12)


def test_decay_falls_on_kernels_alone_unless_asked() -> None:
    model = create_model(**VIT)  # type: ignore[arg-type]
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.1))
    decay = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["names"]}
    assert decay["blocks.0.mlp.expand.weight"] == decay["patch_projection.weight"] == 0.1
    for name in ("class_token", "positions.0.table", "blocks.0.norm_1.weight", "blocks.0.mlp.expand.bias"):
        assert decay[name] == 0
    every = make_optimizer(model, TrainingConfig(weight_decay=0.1, decays_all=True))
    assert {group["weight_decay"] for group in every.param_groups} == {0.1}


def test_layer_decay_shrinks_the_rate_from_head_to_embedding() -> None:
    model = create_model(**VIT)  # type: ignore[arg-type]
    optimizer = make_optimizer(model, TrainingConfig(layer_decay=0.5))
    scale = {name: group["lr_scale"] for group in optimizer.param_groups for name in group["names"]}
    assert scale["head.weight"] == scale["norm.weight"] == 1
    assert [scale[f"blocks.{i}.mlp.expand.weight"] for i in (2, 1, 0)] == [0.5, 0.25, 0.125]
    assert scale["patch_projection.weight"] == scale["positions.0.table"] == 0.0625


def test_a_probe_trains_the_head_alone() -> None:
    model = create_model(**VIT)  # type: ignore[arg-type]
    make_optimizer(model, TrainingConfig(trains="head"))
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}
    headless = create_model(**{**VIT, "num_classes": None})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nothing to train"):
        make_optimizer(headless, TrainingConfig(trains="head"))


def test_frozen_blocks_stay_as_they_are_from_the_embedding_on() -> None:
    model = create_model(**VIT)  # type: ignore[arg-type]
    assert Layers.of(model).depth == 3
    make_optimizer(model, TrainingConfig(frozen_blocks=2))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    early = ("patch_projection", "positions", "class_token", "blocks.0.", "blocks.1.")
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith(early)}
    make_optimizer(model, TrainingConfig())
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ConfigError, match=r"at most 3, .*got 4$"):
        make_optimizer(model, TrainingConfig(frozen_blocks=4))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 24), (1, 24, 8)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
    # Five steps of the quintic land between 0.68 and 1.14 by design, a little less for tiny singular values.
    assert values.max() < 1.25 and values.median() > 0.6


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_no_optimizer_moves_once_a_gradient_was_not_finite(name: str) -> None:
    model = create_model(**VIT)  # type: ignore[arg-type]
    optimizer = make_optimizer(model, TrainingConfig(optimizer=name, weight_decay=0.1))  # type: ignore[arg-type]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_muon_orthogonalises_the_matrices_of_a_unit_and_not_its_tables_of_offsets() -> None:
    model = create_model("AxialResNet-50", image_size=32, num_classes=2, units=(1,), width=32)
    groups = parameter_groups(model, TrainingConfig(optimizer="muon", weight_decay=0.1))
    matrices = {
        name.removeprefix("stages.0.blocks.0.")
        for group in groups
        if group["is_matrix"]
        for name in group["names"]
    }
    assert matrices == {"column_attention.to_qkv.weight", "row_attention.to_qkv.weight"}
    tables = [group for group in groups if any("positions" in name for name in group["names"])]
    assert [group["weight_decay"] for group in tables] == [0.0]


def test_the_momentum_of_matrices_decides_how_long_an_earlier_gradient_acts() -> None:
    changes = []
    for momentum in (0.0, 0.9):
        torch.manual_seed(0)
        model = create_model(**VIT)  # type: ignore[arg-type]
        optimizer = make_optimizer(
            model, TrainingConfig(optimizer="muon", matrix_momentum=momentum, weight_decay=0.0)
        )
        weight = model.get_parameter("blocks.0.mlp.expand.weight")
        for gradient in (
            torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)),
            torch.zeros(()),
        ):
            before = weight.detach().clone()
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            weight.grad = gradient.expand_as(weight).clone()
            optimizer.step()
        changes.append((weight.detach() - before).abs().max().item())
    # After a second gradient of zero: without momentum nothing is left of the first.
    assert changes[0] == 0 and changes[1] > 0


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_every_optimizer_learns(name: str) -> None:
    torch.manual_seed(0)
    model = create_model(**VIT)  # type: ignore[arg-type]
    config = TrainingConfig(optimizer=name, lr=0.1 if name == "sgd" else 3e-3)  # type: ignore[arg-type]
    optimizer = make_optimizer(model, config)
    images, labels = torch.randn(16, 3, 32, 32), torch.arange(16) % 5
    losses = []
    for _ in range(25):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = config.lr * group["lr_scale"]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
