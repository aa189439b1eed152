"""What foreign weights need of a model: no bias in q, k, v, and DINOv2's way to resample positions."""

import torch
import torch.nn.functional as F

from vitrine.models import create_model
from vitrine.models.cost import cost_of
from vitrine.models.positions import resample_grid

SMALL = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 2, "num_heads": 4, "mlp_width": 96}


def test_without_bias_the_projection_has_none_and_the_count_agrees() -> None:
    model = create_model("ViT", num_classes=3, qkv_bias=False, **SMALL)
    assert not [name for name, _ in model.named_parameters() if name.endswith("to_qkv.bias")]
    assert sum(parameter.numel() for parameter in model.parameters()) == cost_of(model.config).params
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 3)


def test_an_offset_places_the_samples_by_the_factor_and_not_by_the_sizes() -> None:
    table = torch.randn(1, 37 * 37, 8)
    image = table.reshape(1, 37, 37, 8).permute(0, 3, 1, 2)
    for rule, mode in (("bicubic_offset", "bicubic"), ("bilinear_offset", "bilinear")):
        found = resample_grid(table, (37, 37), (16, 16), rule=rule)  # type: ignore[arg-type]
        expected = F.interpolate(image, scale_factor=16.1 / 37, mode=mode)
        torch.testing.assert_close(found, expected.permute(0, 2, 3, 1).reshape(1, 256, 8))
        plain = resample_grid(table, (37, 37), (16, 16), rule=mode)  # type: ignore[arg-type]
        assert (found - plain).abs().max() > 1e-3


def test_an_offset_gives_the_asked_size_for_every_grid() -> None:
    for old in range(1, 40):
        for new in range(1, 40):
            table = resample_grid(torch.zeros(1, old * old, 2), (old, old), (new, new), rule="bicubic_offset")
            assert table.shape == (1, new * new, 2), (old, new)


def test_a_model_without_memory_is_built_without_filling_it() -> None:
    with torch.device("meta"):
        model = create_model("ViT", num_classes=3, **SMALL)
    assert all(parameter.is_meta for parameter in model.parameters())
