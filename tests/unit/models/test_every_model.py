"""One list of checks that every kind of model passes."""

import io

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from unit.models.small import FAMILIES, KINDS, small_model
from variations import costly

from vitrine.errors import ConfigError
from vitrine.models import Model, ViT
from vitrine.models.cost import cost_of
from vitrine.models.encoder import ParallelBlock

every_kind = pytest.mark.parametrize("kind", KINDS)
# Compiling takes seconds per kind: `make test` compiles the plain ViT, `make slow` all kinds.
every_kind_slowly = pytest.mark.parametrize("kind", costly(KINDS, quick=["class token"]))


def images_for(model: Model, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, model.config.channels, *model.config.image_size, generator=generator)


def stirred(kind: str) -> Model:
    """A model in which nothing is zero, so that no path hides behind a zero head."""
    torch.manual_seed(1)
    model = small_model(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


@every_kind
def test_saved_and_loaded_weights_give_the_same_logits_bit_for_bit(kind: str) -> None:
    model, other = stirred(kind), small_model(kind).eval()
    other.load_state_dict(load(save(model.state_dict())))
    images = images_for(model)
    assert torch.equal(model(images), other(images))


@every_kind
def test_logits_have_one_row_an_image_and_one_column_a_class(kind: str) -> None:
    model = stirred(kind)
    assert model(images_for(model, 3)).shape == (3, 5)


@every_kind
def test_bf16_gives_finite_logits_near_those_of_fp32(kind: str) -> None:
    model = stirred(kind)
    images = images_for(model)
    exact = model(images)
    rough = model.to(torch.bfloat16)(images.to(torch.bfloat16)).float()
    assert rough.isfinite().all()
    # bf16 keeps 8 bits: 0.4 % a rounding, some tens of roundings deep in a ViT, a hundred in a ResNet.
    assert (rough - exact).norm() / exact.norm() < (0.2 if "BiT" in kind else 0.1)


@every_kind
def test_an_image_gets_the_same_logits_alone_and_in_a_batch(kind: str) -> None:
    model = stirred(kind)
    images = images_for(model, 4)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(
        model(images), alone, rtol=1e-4, atol=1e-5
    )  # other kernels sum in another order


@every_kind
def test_the_gradient_reaches_every_parameter(kind: str) -> None:
    model = stirred(kind).train()
    torch.manual_seed(3)
    model(images_for(model, 8)).square().sum().backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    untouched = [name for name, p in trained if p.grad is None or not p.grad.any()]
    # Without stochastic depth nothing may be cut off; the class token's own slot counts as well.
    assert untouched == []


@every_kind
def test_features_end_with_the_logits_of_the_forward_pass(kind: str) -> None:
    model = stirred(kind)
    images = images_for(model)
    features = model.features(images)
    assert list(features)[-1] == "logits"
    # The forward pass leaves out of the last block what the head does not read: the same sums, of other lengths.
    torch.testing.assert_close(features["logits"], model(images), rtol=0, atol=2e-6)
    assert features["representation"].shape[0] == 2


@every_kind
def test_the_counted_cost_equals_the_parameters_there_are(kind: str) -> None:
    model = small_model(kind)
    assert cost_of(model.config).params == sum(p.numel() for p in model.parameters())


@every_kind
def test_pickling_a_whole_model_is_possible_for_worker_processes(kind: str) -> None:
    buffer = io.BytesIO()
    torch.save(small_model(kind), buffer)
    assert buffer.tell() > 0


@every_kind_slowly
def test_torch_compile_traces_the_whole_model_and_gives_the_same_logits(kind: str) -> None:
    model = stirred(kind)
    images = images_for(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["class token", "relative positions", "hybrid", "BiT"])
def test_torch_compile_lowers_the_model_and_gives_the_same_logits(kind: str) -> None:
    model = stirred(kind)
    images = images_for(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_torch_compile_with_inductor_gives_the_same_logits() -> None:
    model = stirred("class token")
    images = images_for(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "BiT" not in kind and "PVT v2" not in kind])
def test_odd_sizes_are_refused_with_the_nearest_that_fit(kind: str) -> None:
    model = small_model(kind)
    height, width = model.config.image_size
    with pytest.raises(ConfigError, match=rf"got {height + 1}x{width}; .*: {height}(x{width})? and "):
        model(torch.zeros(1, model.config.channels, height + 1, width))


@every_kind
def test_images_of_another_channel_count_are_refused(kind: str) -> None:
    model = small_model(kind)
    with pytest.raises(
        ConfigError, match=rf"images must be \(batch, {model.config.channels}, height, width\)"
    ):
        model(torch.zeros(1, model.config.channels + 1, *model.config.image_size))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no positions"])
def test_another_image_size_at_call_time_works(kind: str) -> None:
    model = stirred(kind)
    height, width = model.config.image_size
    images = torch.randn(2, model.config.channels, 2 * height, 3 * width)
    assert model(images).isfinite().all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "BiT" not in kind and kind not in FAMILIES])
def test_attention_weights_sum_to_one_and_reproduce_the_fused_result(kind: str) -> None:
    model = stirred(kind)
    assert isinstance(model, ViT)
    images = images_for(model)
    features = model.features(images)
    seen = []
    for layer, weights in model.attention(images):
        before = features["embedded"] if layer == 0 else features[f"block_{layer - 1:02d}"]
        seen.append(layer)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)), rtol=0, atol=1e-5)
        grid = model.embed_patches(images)[1]
        tokens, keys = model.block_input(before, grid, layer=layer)
        block = model.blocks[layer]
        parts = block.parts if isinstance(block, ParallelBlock) else [block]
        for part, own in zip(parts, weights.chunk(len(parts), dim=1), strict=True):
            normed = part.norm_1(tokens)
            mixed = own @ part.attention.project(normed)[2]
            torch.testing.assert_close(
                part.attention.join(mixed), part.attention(normed, keys), rtol=1e-4, atol=1e-5
            )
    assert seen == list(range(model.config.depth))


def test_features_run_a_hybrids_stem_once_and_refuse_images_of_other_channels_in_words() -> None:
    model, calls = small_model("hybrid").eval(), []
    assert isinstance(model, ViT)
    model.stem.register_forward_hook(lambda *_: calls.append(1))
    model.features(images_for(model))
    assert len(calls) == 1
    with pytest.raises(ConfigError, match=r"^images .*batch, 3, .*\(\d+, 2, "):
        model.features(images_for(model)[:, :2])
