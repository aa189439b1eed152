"""T2T-ViT and CPVT: published sizes, and their parts in plain ViTs."""

from typing import Any

import pytest
import torch
from torch import nn

from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model
from vitrine.models.cost import cost_of
from vitrine.models.fixed import fixed_parameters
from vitrine.models.t2t_vit import gathered_slices, soft_split
from vitrine.objectives.masked_autoencoder import require_order_free
from vitrine.training.config import TrainingConfig
from vitrine.training.optimizer import freeze

# Total, trainable, GMACs at 224 px, measured on the authors' models.
T2T = {
    "t2t_vit_7": (4_310_222, 4_255_694, 1.147),
    "t2t_vit_10": (5_889_230, 5_834_702, 1.516),
    "t2t_vit_12": (6_941_902, 6_887_374, 1.763),
    "t2t_vit_14": (21_545_550, 21_465_806, 4.784),
    "t2t_vit_19": (39_177_422, 39_085_070, 8.480),
    "t2t_vit_24": (64_105_934, 64_000_974, 13.662),
    "t2t_vit_t_14": (21_541_070, 21_465_422, 6.089),
    "t2t_vit_t_19": (39_172_942, 39_084_686, 9.785),
    "t2t_vit_t_24": (64_101_454, 64_000_590, 14.967),
    "t2t_vit_14_resnext": (21_545_550, 21_465_806, 4.784),
    "t2t_vit_14_wide": (25_156_302, 25_000_910, 5.229),
}
CPVT = {
    "CPVT-Ti": 5_681_512,
    "CPVT-Ti-GAP": 5_681_320,
    "CPVT-Ti-5PEG": 5_689_192,
    "CPVT-Ti-GAP-5PEG": 5_689_000,
    "CPVT-S": 21_978_856,
    "CPVT-S-GAP": 21_978_472,
    "CPVT-S-5PEG": 21_994_216,
    "CPVT-S-GAP-5PEG": 21_993_832,
    "CPVT-B": 86_424_040,
    "CPVT-B-GAP": 86_423_272,
    "CPVT-B-5PEG": 86_454_760,
    "CPVT-B-GAP-5PEG": 86_453_992,
}
CPVT_GMACS = {
    "CPVT-Ti-5PEG": 1.255,
    "CPVT-Ti-GAP-5PEG": 1.248,
    "CPVT-S-5PEG": 4.602,
    "CPVT-S-GAP-5PEG": 4.577,
    "CPVT-B-5PEG": 17.571,
    "CPVT-B-GAP-5PEG": 17.478,
}
SMALL: dict[str, Any] = {
    "width": 32, "depth": 3, "num_heads": 4, "mlp_width": 48, "image_size": 32, "num_classes": 5,
}  # fmt: skip


def counts(model: nn.Module) -> tuple[int, int]:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)


@pytest.mark.parametrize("name", T2T)
def test_t2t_vit_has_the_authors_parameters_and_multiply_adds(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    total, trainable, gmacs = T2T[name]
    assert counts(model) == (total, trainable)
    cost = cost_of(model.config)
    assert cost.params == total
    assert cost.macs / 1e9 == pytest.approx(gmacs, abs=6e-4)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(7, 4, 2), (3, 2, 1)])
def test_a_soft_split_by_slices_equals_torchs_unfold(kernel: int, stride: int, padding: int) -> None:
    images = torch.randn(2, 5, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = soft_split(images, kernel, stride, padding)  # unfold, on the CPU
    slices = gathered_slices(images, kernel, stride, padding, grid=(16 // stride, 24 // stride))
    assert torch.equal(slices, whole)


@pytest.mark.parametrize("name", CPVT)
def test_cpvt_has_the_counted_parameters_and_multiply_adds(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert counts(model) == (CPVT[name], CPVT[name])
    cost = cost_of(model.config)
    assert cost.params == CPVT[name]
    if name in CPVT_GMACS:
        assert cost.macs / 1e9 == pytest.approx(CPVT_GMACS[name], abs=6e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"stem": "t2t"},
        {"stem": "t2t_t", "pooling": "average", "num_registers": 2},
        {"stem": "t2t", "positions": "peg", "has_distillation_token": True},
        {"positions": "peg", "num_registers": 2, "peg_layers": (-1, 1)},
        {"positions": "peg", "pooling": "attention"},
        {"positions": "sincos_1d", "position_placement": "every_layer"},
    ],
)
def test_the_parts_go_with_all_others_at_any_size(options: dict[str, Any]) -> None:
    model = create_model("ViT-Ti/16", **(SMALL | options)).eval()
    assert isinstance(model, ViT)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)
    assert model(torch.randn(2, 3, 48, 64)).isfinite().all()
    state = model.state_dict()
    other = create_model("ViT-Ti/16", **(SMALL | options))
    other.load_state_dict(state)


def test_training_leaves_fixed_features_and_tables_frozen() -> None:
    model = create_model("t2t_vit_7", depth=1, image_size=32)
    fixed = {"stem.layers.0.features", "stem.layers.1.features", "positions.0.table"}
    assert fixed_parameters(model) == fixed
    freeze(model, TrainingConfig())
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == fixed


def test_peg_makes_a_class_token_model_depend_on_where_patches_are() -> None:
    torch.manual_seed(0)
    images = torch.randn(1, 3, 32, 64)
    swapped = torch.cat([images[..., 32:], images[..., :32]], dim=-1)
    for positions, is_same in (("none", True), ("peg", False)):
        model = create_model("ViT-Ti/16", **(SMALL | {"positions": positions, "num_classes": None})).eval()
        with torch.inference_mode():
            same = torch.allclose(model(images), model(swapped), atol=1e-5)
        assert same is is_same


@pytest.mark.parametrize("layers", [(), (2,), (-2,), (1, 0), (0, 0)])
def test_pegs_that_no_block_reads_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        create_model("ViT-Ti/16", **(SMALL | {"positions": "peg", "peg_layers": layers}))
    assert caught.value.option == "peg_layers"


@pytest.mark.parametrize("options", [{"stem": "t2t"}, {"positions": "peg"}])
def test_a_masked_autoencoder_refuses_parts_that_see_hidden_patches(options: dict[str, Any]) -> None:
    config = create_model("ViT-Ti/16", **(SMALL | options)).config
    with pytest.raises(ConfigError):
        require_order_free(config)  # type: ignore[arg-type]
