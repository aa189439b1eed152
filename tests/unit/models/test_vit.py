"""Properties of the Vision Transformer."""

import gc

import pytest
import torch
from unit.models.small import VIT

from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model


def small_vit(**options: object) -> ViT:
    torch.manual_seed(0)
    model = create_model(**{**VIT, **options})  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    assert isinstance(model, ViT)
    return model.eval()


def test_the_encoder_is_permutation_equivariant_without_positions() -> None:
    model = small_vit(positions="none", pooling="average")
    patches, grid = model.embed_patches(torch.randn(2, 3, 32, 32))
    order = torch.randperm(patches.shape[1])
    tokens = model.encode(model.assemble(patches, grid), grid)
    shuffled = model.encode(model.assemble(patches[:, order], grid), grid)
    torch.testing.assert_close(shuffled, tokens[:, order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d", "relative", "sincos_2d"])
def test_with_positions_the_order_of_patches_matters(positions: str) -> None:
    model = small_vit(positions=positions)
    patches, grid = model.embed_patches(torch.randn(2, 3, 32, 32))
    logits = model.classify(model.encode(model.assemble(patches, grid), grid))
    flipped = model.classify(model.encode(model.assemble(patches.flip(1), grid), grid))
    assert (logits - flipped).abs().max() > 1e-4


def test_registers_get_no_position() -> None:
    model = small_vit(num_registers=2)
    patches, grid = model.embed_patches(torch.randn(1, 3, 32, 32))
    tokens = model.assemble(patches, grid)
    torch.testing.assert_close(tokens[:, 1:3], model.registers, rtol=0, atol=0)
    torch.testing.assert_close(tokens[:, 3:], patches + model.positions[0].table[:, 1:], rtol=0, atol=0)


def test_without_prefix_positions_the_class_token_enters_as_it_is() -> None:
    model = small_vit(has_prefix_positions=False)
    tokens = model.assemble(*model.embed_patches(torch.randn(1, 3, 32, 32)))
    torch.testing.assert_close(tokens[:, :1], model.class_token, rtol=0, atol=0)


def test_positions_at_every_layer_are_added_before_each_block() -> None:
    model = small_vit(position_placement="shared")
    images = torch.randn(1, 3, 32, 32)
    features = model.features(images)
    table = model.positions[0].table
    expected = model.blocks[1](features["block_00"] + table)
    torch.testing.assert_close(features["block_01"], expected, rtol=0, atol=0)


def test_a_fresh_model_is_undecided_whatever_it_sees() -> None:
    model = create_model(**VIT).eval()  # type: ignore[arg-type]
    assert not model(torch.randn(2, 3, 32, 32)).any()
    biased = create_model(**VIT, head_bias=-10.0).eval()  # type: ignore[arg-type]
    assert (biased(torch.randn(2, 3, 32, 32)) == -10).all()


def test_a_model_without_classes_answers_with_its_representation() -> None:
    model = small_vit(num_classes=None)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(images), model.features(images)["representation"], rtol=0, atol=2e-6)
    assert model(images).shape == (2, 32)


def test_the_distilled_answer_is_the_mean_of_both_heads() -> None:
    model = small_vit(has_distillation_token=True)
    features = model.features(torch.randn(2, 3, 32, 32))
    class_logits = model.head(features["class_token"])
    torch.testing.assert_close(features["logits"], (class_logits + features["distillation_logits"]) / 2)


def test_stochastic_depth_drops_whole_images_at_the_rate_given() -> None:
    from vitrine.models.encoder import StochasticDepth

    torch.manual_seed(0)
    out = StochasticDepth(0.3).train()(torch.ones(4000, 2, 3))
    dropped = (out == 0).flatten(1).all(1)
    kept = torch.isclose(out, torch.tensor(1 / 0.7)).flatten(1).all(1)
    assert (dropped | kept).all()
    assert abs(dropped.float().mean().item() - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5  # four deviations


def test_stochastic_depth_grows_in_a_line_from_zero() -> None:
    model = small_vit(stochastic_depth=0.2)
    assert [block.stochastic_depth_1.rate for block in model.blocks] == [0, 0.1, 0.2]


def test_activation_checkpointing_changes_neither_logits_nor_gradients() -> None:
    images = torch.randn(2, 3, 32, 32)
    gradients = []
    for checkpointing in (False, True):
        model = small_vit(activation_checkpointing=checkpointing).train()
        model(images).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=0, atol=0)


def test_attention_of_chosen_layers_is_that_of_all() -> None:
    model = small_vit()
    images = torch.randn(2, 3, 32, 32)
    every = dict(model.attention(images))
    chosen = dict(model.attention(images, layers=[-1, 1]))
    assert list(chosen) == [1, 2]
    for layer, weights in chosen.items():
        torch.testing.assert_close(weights, every[layer], rtol=0, atol=0)
    with pytest.raises(ConfigError, match=r"layers.*0 to 2.*got 3$"):
        next(model.attention(images, layers=[3]))


def test_attention_keeps_one_layer_in_memory_and_leaves_gradients_on() -> None:
    model = small_vit(depth=6)
    alive = []
    for _, weights in model.attention(torch.randn(1, 3, 32, 32)):
        assert torch.is_grad_enabled()
        shape, size = weights.shape, weights.numel()
        del weights
        gc.collect()
        alive.append(sum(1 for o in gc.get_objects() if isinstance(o, torch.Tensor) and o.shape == shape))
        assert size
    assert max(alive) <= 1


@pytest.mark.parametrize(
    "options",
    [{}, {"has_distillation_token": True}, {"positions": "relative"}, {"qk_norm": True, "num_registers": 2}],
    ids=lambda options: next(iter(options), "class token"),
)
def test_leaving_out_what_the_head_never_reads_leaves_every_gradient(options: dict[str, object]) -> None:
    model = small_vit(**options).double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)

    def gradients(logits: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        (logits * torch.arange(1.0, 6.0)).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    patches, grid = model.embed_patches(images)
    whole = gradients(model.classify(model.encode(model.assemble(patches, grid), grid)))
    cut = gradients(model(images))
    assert set(cut) == set(whole) == {name for name, _ in model.named_parameters()}
    for name, gradient in whole.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"positions": "relative"}], ids=["plain", "relative"])
def test_in_bf16_on_a_cpu_written_out_attention_is_the_fused_one(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = small_vit(**options), torch.randn(4, 3, 32, 32)

    def answers() -> tuple[torch.Tensor, torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(images).float()
        logits.square().sum().backward()
        gradient = model.blocks[0].attention.to_qkv.weight.grad
        assert gradient is not None
        return logits.detach(), gradient.clone()

    logits, gradient = answers()
    monkeypatch.setattr("vitrine.models.attention.MOST_WRITTEN_OUT", 0)
    fused, of_fused = answers()
    # bf16 keeps eight bits: a few parts in a thousand over three layers.
    torch.testing.assert_close(logits, fused, rtol=0, atol=0.02 * fused.abs().max().item())
    torch.testing.assert_close(gradient, of_fused, rtol=0, atol=0.04 * of_fused.abs().max().item())
    assert not torch.equal(logits, fused)
