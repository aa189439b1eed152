"""DeiT III: published counts, timm's logits on shared random weights, and the authors' files both ways."""

from pathlib import Path

import pytest
import torch
from numerics.test_timm_surface import share
from oracles import import_timm
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitrine import load
from vitrine.checkpoints.saving import save
from vitrine.models import ViT, create_model
from vitrine.models.cost import cost_of
from vitrine.models.variants import configure

timm = import_timm()
# Name, parameters and GMACs of the authors' models, built and counted.
PUBLISHED = (
    ("deit_tiny_patch16_LS", 224, 5_721_832, 1.254),
    ("deit_small_patch16_LS", 224, 22_059_496, 4.599),
    ("deit_medium_patch16_LS", 224, 38_849_512, 7.991),
    ("deit_base_patch16_LS", 224, 86_585_320, 17.564),
    ("deit_large_patch16_LS", 224, 304_374_760, 61.555),
    ("deit_huge_patch14_LS", 224, 632_126_440, 167.295),
    ("deit3_small_patch16_384", None, 22_205_416, 15.490),
    ("deit3_base_patch16_384.fb_in1k", None, 86_877_160, 55.484),
    ("deit3_large_patch16_384", None, 304_763_880, 191.066),
    ("DeiT-III-S/16", 224, 22_059_496, 4.599),
    ("DeiT III-M", 224, 38_849_512, 7.991),
    ("DeiT III-H", 224, 632_126_440, 167.295),
)


@pytest.mark.parametrize(("name", "size", "params", "gmacs"), PUBLISHED)
def test_every_name_has_the_published_numbers_of_parameters_and_operations(
    name: str, size: int | None, params: int, gmacs: float
) -> None:
    cost = cost_of(configure(name, image_size=size))
    assert cost.params == params
    # We count the last layer's product with one class token too; the published count is of matrix products alone.
    assert cost.macs / 1e9 == pytest.approx(gmacs, rel=1e-3)


@pytest.mark.parametrize("name", ["deit3_small_patch16_224", "deit3_medium_patch16_224"])
def test_logits_of_random_weights_are_timms(name: str) -> None:
    theirs = timm.create_model(name, num_classes=10, depth=4).eval()
    ours = create_model(name, num_classes=10, depth=4).eval()
    assert isinstance(ours, ViT)
    share_published(theirs, ours)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        difference = (ours(images) - theirs(images)).abs().max()
    assert difference < 5e-6


def share_published(theirs: nn.Module, ours: ViT) -> None:
    """Share weights of the size that training gives: .02, with LayerScale of order one."""
    share(theirs, ours)
    with torch.no_grad():
        for mine, other in ((ours, theirs),):
            for name, parameter in (*mine.named_parameters(), *other.named_parameters()):
                if parameter.ndim > 1:
                    parameter.mul_(0.1)
                assert parameter.isfinite().all(), name


def test_parallel_blocks_are_timms() -> None:
    options = {"num_classes": 5, "depth": 2, "img_size": 64}
    theirs = timm.create_model("vit_small_patch16_18x2_224", **options).eval()
    ours = create_model("vit_small_patch16_18x2_224", **options, gelu="erf").eval()
    assert isinstance(ours, ViT) and ours.config.num_branches == 2
    share_published(theirs, ours)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=5e-6)


def test_a_counted_pass_has_the_predicted_operations_with_stem_and_branches() -> None:
    options = {"num_classes": 5, "depth": 2, "image_size": 64, "width": 48, "num_heads": 3, "mlp_width": 96}
    model = create_model("deit_small_patch16_18x2_LS", **options, stem="hmlp").eval()
    # The counter does not see into the CPU's fused attention.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model.features(torch.randn(1, 3, 64, 64))
    assert counter.get_total_flops() == 2 * cost_of(model.config).macs


@pytest.mark.parametrize(
    "options", [{}, {"stem": "hmlp"}, {"depth": 2, "num_branches": 2}, {"qkv_bias": False}]
)
def test_the_authors_files_are_written_and_read_to_the_bit(options: dict, tmp_path: Path) -> None:  # type: ignore[type-arg]
    torch.manual_seed(0)
    shape = {"depth": 2, "width": 64, "num_heads": 1, "mlp_width": 96, "num_classes": 3, "image_size": 64}
    model = create_model("DeiT-III-S/16", **{**shape, **options}).eval()
    assert isinstance(model, ViT)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.uniform_(0.1, 0.5)
    path = tmp_path / "deit3.safetensors"
    save(model, path, to="deit3")
    read = load(path).model.eval()
    images = torch.randn(2, 3, 64, 64)
    assert read.config == model.config
    with torch.no_grad():
        assert torch.equal(read(images), model(images))


def test_the_keys_are_those_of_the_authors_code(tmp_path: Path) -> None:
    model = create_model("deit_small_patch16_LS")
    path = tmp_path / "deit3.pth"
    found = {rule.theirs: tuple(model.state_dict()[rule.ours[0]].shape) for rule in rules_of(model)}
    assert len(found) == 176
    assert found["pos_embed"] == (1, 196, 384) and found["blocks.11.gamma_2"] == (384,)
    torch.save({"model": {name: torch.zeros(shape) for name, shape in found.items()}}, path)
    config = load(path).model.config
    assert isinstance(config.position_resampling, str) and config.position_resampling == "bicubic"  # type: ignore[union-attr]
    assert config.num_heads == 6 and config.layer_scale == 1e-4  # type: ignore[union-attr]


def rules_of(model: nn.Module) -> list:  # type: ignore[type-arg]
    from vitrine.checkpoints.layouts import layout_for

    return layout_for("deit3", model.config).rules(model.config)  # type: ignore[arg-type]
