"""The deployed form of every kind of model computes what the model computes."""

import pytest
import torch
from torch import nn
from unit.exporting.made import filled
from unit.models.small import KINDS

from vitrine.exporting.inference_layers import relative_logits
from vitrine.exporting.inference_model import InferenceModel, InferenceViT
from vitrine.models import create_model
from vitrine.models.attention import SelfAttention
from vitrine.models.standardised_conv import StandardisedConv2d


@pytest.mark.parametrize("kind", KINDS)
def test_a_deployed_model_answers_as_the_model_does(kind: str) -> None:
    model = filled(kind)
    images = torch.randn(
        3, model.config.channels, *model.config.image_size, generator=torch.Generator().manual_seed(1)
    )
    with torch.inference_mode():
        expected = model.features(images)
        logits, embedding = InferenceModel(model)(images)
    # fp32 rounding of a few layers on numbers of order one.
    torch.testing.assert_close(logits, expected["logits"], rtol=0, atol=2e-6)
    torch.testing.assert_close(embedding, expected["representation"], rtol=0, atol=4e-6)


@pytest.mark.parametrize("kind", ["class token", "distillation token", "relative positions"])
def test_the_last_block_reads_all_tokens_and_computes_only_those_that_the_head_reads(kind: str) -> None:
    model = filled(kind)
    body = InferenceModel(model).body
    assert isinstance(body, InferenceViT)
    tokens = torch.randn(2, model.config.num_tokens, model.config.width)
    number = 2 if kind == "distillation token" else 1
    assert body.blocks[-1](tokens)[0].shape[1] == number
    assert body.blocks[0](tokens)[0].shape[1] == model.config.num_tokens
    changed = tokens.clone()
    changed[:, -1] += 1
    assert not torch.equal(body.blocks[-1](tokens)[0], body.blocks[-1](changed)[0])


def test_a_model_without_a_head_answers_with_its_embedding_alone() -> None:
    model = create_model("ViT", image_size=32, num_classes=None, width=32, depth=1, num_heads=2, mlp_width=32)
    deployed = InferenceModel(model)
    assert deployed.output_names == ("embedding",)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(deployed(images)[0], model.eval()(images), rtol=0, atol=4e-6)


def test_offsets_by_a_view_equal_offsets_by_a_gather() -> None:
    attention = SelfAttention(24, num_heads=2)
    q, table = torch.randn(2, 2, 7, 12), torch.randn(13, 24)
    expected = attention.relative_logits(q, table)
    keys = table.flip(0).view(13, 2, 12).permute(1, 2, 0)
    found = relative_logits(q * 12**-0.5, keys)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(
        relative_logits(q[:, :, :1] * 12**-0.5, keys), expected[:, :, :1], rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("kind", ["hybrid", "BiT", "AxialResNet"])
def test_standardised_kernels_are_worked_out_once_and_the_model_is_left_as_it_was(kind: str) -> None:
    model = filled(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    deployed = InferenceModel(model)
    assert not [found for found in deployed.modules() if isinstance(found, StandardisedConv2d)]
    assert [found for found in deployed.modules() if isinstance(found, nn.Conv2d)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
