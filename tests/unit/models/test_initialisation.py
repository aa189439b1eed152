"""Fresh models begin as the authors' code makes them begin, seen by their statistics.

Bounds are four standard errors: sqrt(2 / n) / 2 for a deviation relative to itself, loosened where n is large.
"""

import math

import pytest
import torch

from vitrine.models import BiT, ViT, create_model


@pytest.fixture(scope="module")
def model() -> ViT:
    torch.manual_seed(0)
    fresh = create_model(
        "ViT-S/16", depth=2, representation_width=384, positions="learned_1d", pooling="attention",
        has_class_token=True, head_bias=-10.0,
    )  # fmt: skip
    assert isinstance(fresh, ViT)
    return fresh


def assert_deviation(tensor: torch.Tensor, expected: float) -> None:
    error = 4 * math.sqrt(1 / (2 * tensor.numel()))
    assert abs(tensor.std().item() / expected - 1) < max(error, 0.01)
    assert abs(tensor.mean().item()) < 4 * expected / math.sqrt(tensor.numel())


def test_the_patch_kernel_is_lecun_normal_cut_at_two_deviations(model: ViT) -> None:
    weight = model.patch_projection.weight.detach()
    assert_deviation(weight, (3 * 16 * 16) ** -0.5)
    assert weight.abs().max() <= 2.0001 * (3 * 16 * 16) ** -0.5 / 0.87962566103423978
    assert not model.patch_projection.bias.any()


def test_queries_keys_and_values_are_xavier_uniform_each_on_its_own(model: ViT) -> None:
    bound = math.sqrt(6 / (384 + 384))
    for part in model.blocks[0].attention.to_qkv.weight.detach().chunk(3):
        assert 0.99 * bound < part.abs().max() <= bound
        assert_deviation(part, bound / math.sqrt(3))
    assert not model.blocks[0].attention.to_qkv.bias.any()
    assert not model.blocks[0].attention.to_out.bias.any()


def test_mlp_kernels_are_xavier_uniform_and_their_biases_almost_zero(model: ViT) -> None:
    bound = math.sqrt(6 / (384 + 1536))
    for layer in (model.blocks[1].mlp.expand, model.blocks[1].mlp.contract):
        assert 0.99 * bound < layer.weight.detach().abs().max() <= bound
        assert_deviation(layer.bias.detach(), 1e-6)


def test_positions_are_normal_and_class_token_and_head_zero(model: ViT) -> None:
    assert_deviation(model.positions[0].table.detach(), 0.02)
    assert model.class_token is not None and not model.class_token.any()
    assert model.head is not None and not model.head.weight.any() and (model.head.bias == -10).all()


def test_norms_begin_as_the_identity_and_a_hybrids_branches_at_zero() -> None:
    hybrid = create_model("R26+ViT-Ti/32", image_size=64, depth=1)
    assert isinstance(hybrid, ViT)
    for stage in hybrid.stem.stages:
        for unit in stage:
            assert not unit.norm_3.weight.any() and (unit.norm_1.weight == 1).all()
    assert (hybrid.norm.weight == 1).all() and not hybrid.norm.bias.any()


def test_bit_kernels_are_lecun_normal_and_its_head_zero() -> None:
    torch.manual_seed(0)
    model = create_model("BiT-R26x1", image_size=64)
    assert isinstance(model, BiT)
    assert_deviation(model.stages[0][0].conv_2.weight.detach(), (9 * 64) ** -0.5)
    assert model.head is not None and not model.head.weight.any()


def test_layer_scale_begins_at_its_value_and_registers_differ() -> None:
    model = create_model("ViT-Ti/16", depth=1, layer_scale=1e-5, num_registers=4)
    assert isinstance(model, ViT)
    assert (model.blocks[0].scale_1.gain == 1e-5).all()
    assert model.registers is not None and model.registers.std() > 0
