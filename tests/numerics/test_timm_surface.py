"""timm's methods and keywords against timm itself, on shared random weights."""

from functools import partial
from typing import Any

import pytest
import torch
from oracles import import_timm
from torch import nn

from vitrine.checkpoints.layouts import layout_for
from vitrine.errors import ConfigError
from vitrine.models import BiT, ViT, create_model

timm = import_timm()
SHAPE = {"img_size": 64, "patch_size": 16, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 7}
KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "average": {"global_pool": "avg", "fc_norm": True, "class_token": True},
    "attention": {"global_pool": "map", "class_token": False},
    "registers": {"reg_tokens": 2, "init_values": 0.1, "no_embed_class": True},
    "mlp": {
        "mlp_ratio": 2.5,
        "qkv_bias": False,
        "act_layer": nn.SiLU,
        "norm_layer": partial(nn.RMSNorm, eps=1e-5),
    },
    "names": {"act_layer": "quick_gelu", "norm_layer": nn.LayerNorm, "in_chans": 2, "drop_rate": 0.1},
    "rates": {"proj_drop_rate": 0.1, "attn_drop_rate": 0.1, "pos_drop_rate": 0.1, "drop_path_rate": 0.1},
}


def pair(kind: str) -> tuple[ViT, nn.Module]:
    """Our model and timm's, built with the same keywords, with the same random weights."""
    torch.manual_seed(0)
    theirs = timm.models.vision_transformer.VisionTransformer(**SHAPE, **KINDS[kind]).eval()
    options = {"act_layer": "gelu", "norm_eps": 1e-6, **KINDS[kind]}
    if "norm_layer" in KINDS[kind] and kind == "mlp":
        del options["norm_eps"]
    if kind == "names":
        options["norm_eps"] = 1e-5  # torch's LayerNorm without arguments
    ours = create_model("ViT", **SHAPE, **options)
    assert isinstance(ours, ViT)
    share(theirs, ours)
    return ours.eval(), theirs


def share(theirs: nn.Module, ours: ViT | BiT) -> None:
    """Fill both with the same random numbers, tensor by tensor of timm's layout."""
    state, found = theirs.state_dict(), dict(ours.state_dict())
    rules = layout_for("timm", ours.config).rules(ours.config)
    known = {rule.theirs for rule in rules}
    assert known == set(state), (sorted(known - set(state)), sorted(set(state) - known))
    for rule in rules:
        value = torch.randn_like(state[rule.theirs]) * 0.2
        state[rule.theirs] = value
        (name,) = rule.ours
        rule.view.apply(found[name]).copy_(value)
    theirs.load_state_dict(state)
    ours.load_state_dict(found)


@pytest.mark.parametrize("kind", KINDS)
def test_keywords_build_the_model_that_timm_builds_and_methods_return_what_timms_do(kind: str) -> None:
    ours, theirs = pair(kind)
    images = torch.randn(2, ours.config.channels, 64, 64)
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=2e-5)
    with torch.no_grad():
        close(ours(images), theirs(images))
        features = theirs.forward_features(images)
        close(ours.forward_features(images), features)
        close(ours.forward_head(features), theirs.forward_head(features))
        close(ours.forward_head(features, pre_logits=True), theirs.forward_head(features, pre_logits=True))
        for options in (
            {}, {"indices": 2, "norm": True}, {"indices": [0, -1], "output_fmt": "NLC"},
            {"indices": [1], "stop_early": True, "return_prefix_tokens": True},
        ):  # fmt: skip
            last, levels = ours.forward_intermediates(images, **options)  # type: ignore[arg-type]
            their_last, their_levels = theirs.forward_intermediates(images, **options)
            close(last, their_last)
            close(levels, their_levels)
            close(ours.forward_intermediates(images, intermediates_only=True, **options), their_levels)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["class token", "average"])
def test_reset_classifier_changes_head_and_pooling_as_timm_does(kind: str) -> None:
    ours, theirs = pair(kind)
    images = torch.randn(2, 3, 64, 64)
    for model in (ours, theirs):
        model.reset_classifier(5, "avg")
    assert ours.get_classifier().weight.shape == theirs.get_classifier().weight.shape == (5, 48)
    assert ours(images).shape == theirs(images).shape == (2, 5)
    assert ours.config.num_classes == 5
    for model in (ours, theirs):
        model.reset_classifier(0)
    assert isinstance(ours.get_classifier(), nn.Identity)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=2e-5)
    with pytest.raises(ConfigError) as error:
        ours.reset_classifier(5, "map")
    assert error.value.option == "global_pool"


def test_tables_and_tokens_are_not_decayed_in_either() -> None:
    ours, theirs = pair("registers")
    names = {"pos_embed": "positions.0.table", "cls_token": "class_token", "reg_token": "registers"}
    undecayed = {names[name] for name in theirs.no_weight_decay() if name in names}
    assert ours.no_weight_decay() == undecayed


@pytest.mark.parametrize("name", ["twins_pcpvt_small", "tnt_s_patch16_224", "pvt_v2_b0"])
def test_descendants_name_as_many_values_that_are_not_decayed_as_timm(name: str) -> None:
    """By their sizes, as the names differ; a class token that timm does not have cannot hide a missing table."""
    with torch.device("meta"):
        ours, theirs = create_model(name), timm.create_model(name)
    own, foreign = (
        sorted(model.get_parameter(parameter).numel() for parameter in model.no_weight_decay())
        for model in (ours, theirs)
    )
    assert own == foreign


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    ours, _ = pair("class token")
    images = torch.randn(2, 3, 64, 64)
    ours.train()

    def gradient() -> torch.Tensor:
        ours.zero_grad()
        ours(images).square().sum().backward()
        return ours.blocks[0].mlp.expand.weight.grad.clone()  # type: ignore[union-attr]

    plain = gradient()
    ours.set_grad_checkpointing()
    assert ours.config.activation_checkpointing
    torch.testing.assert_close(gradient(), plain)


def test_a_distilled_model_has_two_heads_and_the_mean_of_both() -> None:
    theirs = timm.models.deit.VisionTransformerDistilled(**SHAPE).eval()
    ours = create_model("ViT", **SHAPE, distilled=True, act_layer="gelu").eval()
    share(theirs, ours)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = theirs.forward_features(images)
        for pre_logits in (False, True):
            torch.testing.assert_close(
                ours.forward_head(features, pre_logits),
                theirs.forward_head(features, pre_logits),
                rtol=1e-4,
                atol=1e-5,
            )
    assert [head.weight.shape for head in ours.get_classifier()] == [(7, 48), (7, 48)]


def test_a_resnet_has_the_levels_and_features_of_timms() -> None:
    theirs = timm.create_model("resnetv2_50x1_bit", num_classes=5).eval()
    ours = create_model("BiT-R50x1", num_classes=5, image_size=64).eval()
    assert isinstance(ours, BiT)
    share(theirs, ours)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-3)
        last, levels = ours.forward_intermediates(images)
        their_last, their_levels = theirs.forward_intermediates(images)
        close(last, their_last)
        close(levels, their_levels)
        close(ours.forward_features(images), theirs.forward_features(images))
        close(ours.forward_head(last), theirs.forward_head(their_last))
        close(ours.forward_head(last, pre_logits=True), theirs.forward_head(their_last, pre_logits=True))


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"act_layer": "mish"}, "act_layer"),
        ({"norm_layer": nn.BatchNorm2d}, "norm_layer"),
        ({"global_pool": ""}, "global_pool"),
        ({"embed_dim": 48, "width": 48}, "embed_dim"),
    ],
)
def test_a_keyword_that_has_no_meaning_here_is_refused_by_its_name(
    options: dict[str, Any], option: str
) -> None:
    with pytest.raises(ConfigError) as error:
        create_model("ViT", **options)
    assert error.value.option == option


def test_calls_written_for_timm_build_new_weights_and_say_where_trained_ones_are() -> None:
    small = {"img_size": 32, "depth": 1, "embed_dim": 48, "num_heads": 3}
    model = create_model("vit_tiny_patch16_224", pretrained=False, num_classes=0, **small)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 48)
    with pytest.raises(ConfigError, match=r"vitrine\.load") as error:
        create_model("vit_tiny_patch16_224", pretrained=True, **small)
    assert error.value.option == "pretrained"


@pytest.mark.parametrize(
    ("name", "timms", "size", "options"),
    [
        ("PVT-v2-B0", "pvt_v2_b0", 64, {}),
        ("PCPVT-Small", "twins_pcpvt_small", 64, {"depths": (1, 1, 1, 1)}),
        ("TNT-S", "tnt_s_patch16_224", 32, {"depth": 2}),
    ],
)
def test_other_families_return_the_features_and_heads_of_timms(
    name: str, timms: str, size: int, options: dict[str, Any]
) -> None:
    sized = {"img_size": size} if name != "PVT-v2-B0" else {}
    theirs = timm.create_model(timms, num_classes=5, **sized, **options).eval()
    ours = create_model(name, num_classes=5, image_size=size, **options).eval()
    share(theirs, ours)  # type: ignore[arg-type]
    images = torch.randn(2, 3, size, size)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        features = theirs.forward_features(images)
        close(ours.forward_features(images), features)
        close(ours.forward_head(features), theirs.forward_head(features))
        close(ours.forward_head(features, pre_logits=True), theirs.forward_head(features, pre_logits=True))
        levels = ours.forward_intermediates(images, indices=[0, 1], intermediates_only=True)
        close(levels, theirs.forward_intermediates(images, indices=[0, 1], intermediates_only=True))
    for model in (ours, theirs):
        model.reset_classifier(3)
    assert ours(images).shape == theirs(images).shape == (2, 3)
    ours.set_grad_checkpointing()
    assert ours.config.activation_checkpointing
