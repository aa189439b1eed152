"""Options beyond the paper: activations, norms, dropouts, parallel branches, stems, each against its formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from unit.models.small import VIT, two_convolutions

from vitrine.checkpoints.record import config_from_json, config_to_json
from vitrine.errors import ConfigError
from vitrine.models import Block, ViT, create_model, register_cnn
from vitrine.models.cnn_stem import CNNS
from vitrine.models.dropout import image_keys, number_random_layers, randomness_of
from vitrine.models.encoder import LayerScale, Mlp
from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.training.config import TrainingConfig
from vitrine.training.optimizer import parameter_groups

TOKENS = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))


def small(**options: object) -> ViT:
    torch.manual_seed(0)
    model = create_model(**{**VIT, **options})  # type: ignore[arg-type]
    assert isinstance(model, ViT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({"activation": "gelu", "gelu": "erf"}, lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
        ({"activation": "relu"}, lambda x: x.clamp(min=0)),
        ({"activation": "silu"}, lambda x: x / (1 + torch.exp(-x))),
        ({"activation": "quick_gelu"}, lambda x: x / (1 + torch.exp(-1.702 * x))),
    ],
)
def test_the_mlp_equals_its_formula_with_each_activation(options: dict, formula) -> None:  # type: ignore[no-untyped-def, type-arg]
    mlp = Mlp(16, hidden_width=24, **options)
    hidden = formula(TOKENS @ mlp.expand.weight.T + mlp.expand.bias)
    torch.testing.assert_close(mlp(TOKENS), hidden @ mlp.contract.weight.T + mlp.contract.bias)


def test_a_block_alone_equals_equations_2_and_3_with_rms_norm_and_layer_scale() -> None:
    block = Block(16, num_heads=2, norm="rms_norm", layer_scale=0.5, attention_scale=0.2)

    def rms(tokens: Tensor) -> Tensor:
        return tokens / (tokens.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    q, k, v = block.attention.to_qkv(rms(TOKENS)).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
    mixed = (0.2 * q @ k.transpose(-2, -1)).softmax(-1) @ v
    tokens = TOKENS + 0.5 * block.attention.to_out(mixed.transpose(1, 2).reshape(2, 5, 16))
    expected = tokens + 0.5 * block.mlp(rms(tokens))
    torch.testing.assert_close(block(TOKENS), expected, rtol=1e-5, atol=1e-5)


def test_parallel_branches_are_sums_of_attentions_and_then_of_mlps() -> None:
    model = small(num_branches=2, layer_scale=0.1)
    block = model.blocks[0]
    tokens = torch.randn(2, 17, 32)
    first, second = block.branches  # type: ignore[union-attr, misc]
    mixed = tokens + first.mix(tokens) + second.mix(tokens)
    expected = mixed + first.transform(mixed) + second.transform(mixed)
    torch.testing.assert_close(block(tokens), expected)
    assert block.attention_weights(tokens).shape == (2, 8, 17, 17)  # type: ignore[operator]


def test_attention_dropout_drops_weights_by_the_image_whatever_the_batch() -> None:
    model = small(attention_dropout=0.5).train()
    number_random_layers(model)
    images = torch.randn(4, 3, 32, 32)
    keys = image_keys(0, first=0, count=4, device=torch.device("cpu"))
    with torch.no_grad():
        with randomness_of(keys):
            together = model(images)
        with randomness_of(keys[2:]):
            apart = model(images[2:])
        plain = model.eval()(images)
    torch.testing.assert_close(together[2:], apart, rtol=1e-4, atol=1e-5)
    assert (together - plain).abs().max() > 1e-3


def test_each_dropout_acts_only_where_it_is_named() -> None:
    model = small(position_dropout=0.1, projection_dropout=0.2, attention_dropout=0.3, head_dropout=0.4)
    block = model.blocks[0]
    assert isinstance(block, Block)
    rates = (model.dropout.rate, block.dropout.rate, block.mlp.dropout.rate, block.attention.dropout.rate)
    assert (*rates, model.head_dropout.rate) == (0.1, 0.2, 0.2, 0.3, 0.4)


def test_default_models_have_the_same_layers_that_draw_as_before_so_old_runs_resume() -> None:
    """Draws are numbered by the order of layers: a new one would change those of a run that continues."""
    model = small(dropout=0.1, stochastic_depth=0.1)
    layers = [name for name, module in model.named_modules() if hasattr(module, "rate")]
    of_block = ["mlp.hidden_dropout", "mlp.dropout", "dropout", "stochastic_depth_1", "stochastic_depth_2"]
    assert layers == ["dropout", *(f"blocks.{i}.{name}" for i in range(3) for name in of_block)]


def test_constant_drop_rates_are_the_same_in_every_block() -> None:
    model = small(stochastic_depth=0.3, drop_rates="constant")
    assert [block.stochastic_depth_1.rate for block in model.blocks] == [0.3] * 3  # type: ignore[union-attr]


def test_the_hmlp_stem_equals_three_convolutions_with_batch_norms() -> None:
    model = small(stem="hmlp", patch_size=16, image_size=64)
    images = torch.randn(2, 3, 64, 64)
    hidden = F.gelu(model.stem.norm_1(model.stem.conv_1(images)))  # type: ignore[union-attr, operator]
    hidden = F.gelu(model.stem.norm_2(model.stem.conv_2(hidden)))  # type: ignore[union-attr, operator]
    projected = F.batch_norm(
        model.patch_projection(hidden),
        model.patch_norm.running_mean,  # type: ignore[arg-type]
        model.patch_norm.running_var,  # type: ignore[arg-type]
        model.patch_norm.weight,  # type: ignore[arg-type]
        model.patch_norm.bias,  # type: ignore[arg-type]
    )
    patches, grid = model.embed_patches(images)
    assert grid == (4, 4)
    torch.testing.assert_close(patches, projected.flatten(2).transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_a_hybrid_on_any_network_keeps_the_weights_of_the_network() -> None:
    network = two_convolutions(3)
    if "pretrained" not in CNNS:
        register_cnn("pretrained", lambda channels: [network, two_convolutions(channels)][channels != 3])
    model = small(stem="pretrained", patch_size=8)
    fresh = create_model(**{**VIT, "stem": "pretrained", "patch_size": 8})  # type: ignore[arg-type]
    assert isinstance(fresh, ViT)
    assert model.config.patch_size == (2, 2) and model.config.grid_size == (4, 4)
    assert fresh.stem.network is network


def test_a_network_that_returns_no_map_or_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError):
        register_cnn("flat", lambda channels: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    with pytest.raises(ConfigError) as error:
        create_model("ViT-S/16", stem="nobody knows it")
    assert error.value.option == "stem"


def test_records_keep_every_kind_of_stem_and_old_ones_are_resnets() -> None:
    for stem in ("hmlp", "two convolutions"):
        config = small(stem=stem, patch_size=16, image_size=64).config
        assert config_from_json(config_to_json(config)) == config
    hybrid = config_to_json(create_model("R26+ViT-Ti/16", image_size=64, depth=1).config)
    del hybrid["stem"]["kind"]  # as earlier versions wrote it
    hybrid["stem"]["units"] = list(hybrid["stem"]["units"])
    for new in ("activation", "norm", "num_branches", "attention_dropout", "drop_rates"):
        del hybrid[new]
    read = config_from_json(hybrid)
    assert read.stem == ResNetStemConfig(units=(2, 2, 2 + 2))  # type: ignore[union-attr]
    assert read.activation == "gelu" and read.num_branches == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{"num_branches": 2, "layer_scale": 0.1}, {"norm": "rms_norm"}])
def test_layer_decay_gives_a_block_one_rate_whatever_is_in_it(options: dict) -> None:  # type: ignore[type-arg]
    model = small(**options)
    groups = parameter_groups(model, TrainingConfig(layer_decay=0.5))
    scales = {name: group["lr_scale"] for group in groups for name in group["names"]}
    assert {scale for name, scale in scales.items() if name.startswith("blocks.1.")} == {0.25}
    assert scales["norm.weight"] == 1.0


def test_layer_scale_is_filled_at_birth() -> None:
    assert LayerScale(4, initial=0.25).gain.tolist() == [0.25] * 4
