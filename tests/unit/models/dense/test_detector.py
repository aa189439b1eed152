"""The dense detector: its cells, its cost, its way to disk and to other sizes, and its first answers."""

import dataclasses
from pathlib import Path

import pytest
import torch

from vitrine.checkpoints import load, save
from vitrine.errors import ConfigError
from vitrine.models import ViTConfig, build
from vitrine.models.cost import cost_of
from vitrine.models.dense.config import DetectorConfig, YolosConfig, as_encoder
from vitrine.models.dense.detector import Detector, all_cells

VIT = as_encoder(
    ViTConfig(image_size=(32, 32), patch_size=(8, 8), width=32, depth=2, num_heads=2, mlp_width=48)
)


@pytest.mark.parametrize("levels", [(1.0,), (2.0, 1.0, 0.5, 0.25), (4.0, 0.125)])
def test_every_cell_answers_with_a_box_and_probabilities_and_parameters_are_counted(
    levels: tuple[float, ...],
) -> None:
    config = DetectorConfig(vit=VIT, num_classes=5, width=24, levels=levels, num_convs=1)
    model = build(config).eval()
    assert isinstance(model, Detector)
    images = torch.randn(2, 3, 40, 56)
    answers = model(images)
    cells = model.cells((5, 7), device=images.device)
    assert answers.shape == (2, len(cells), 9)
    centres = (answers[..., :2] + answers[..., 2:4]) / 2
    # A fresh model's boxes lie around their cells, with an even chance of one in a hundred for every class.
    assert ((centres - cells[:, :2]).abs() < 2 * cells[:, 2:]).all()
    assert (answers[..., 4:] - 0.01).abs().max() < 0.05
    assert cost_of(config).params == sum(parameter.numel() for parameter in model.parameters())
    assert cost_of(config).macs > cost_of(VIT).macs


def test_cells_tile_the_picture_level_by_level() -> None:
    cells = all_cells((2, 3), (2.0, 1.0, 0.5), stride=8, device=torch.device("cpu"))
    assert len(cells) == 4 * 6 + 2 * 3 + 1 * 2
    assert cells[0].tolist() == [2, 2, 4]
    assert cells[24 + 5].tolist() == [20, 12, 8]
    assert cells[-1].tolist() == [24, 8, 16]


def test_a_saved_detector_computes_the_same_and_adapts_to_another_size(tmp_path: Path) -> None:
    model = build(DetectorConfig(vit=VIT, num_classes=2, width=16)).eval()
    save(model, tmp_path / "model", classes=["cat", "dog"])
    images = torch.randn(1, 3, 32, 32)
    loaded = load(tmp_path / "model")
    assert torch.equal(loaded.model(images), model(images))
    larger = load(tmp_path / "model", image_size=64).model
    torch.testing.assert_close(larger(torch.ones(1, 3, 64, 64)), model(torch.ones(1, 3, 64, 64)))
    with pytest.raises(ConfigError, match="on boxes of other") as refused:
        load(tmp_path / "model", num_classes=3)
    assert refused.value.option == "num_classes"


@pytest.mark.parametrize("has_middle_positions", [True, False])
def test_a_yolos_is_counted_saved_and_resampled(has_middle_positions: bool, tmp_path: Path) -> None:
    config = YolosConfig(vit=VIT, num_classes=2, num_detections=6, has_middle_positions=has_middle_positions)
    model = build(config).eval()
    answers = model(torch.randn(2, 3, 32, 48))
    assert answers.shape == (2, 6, 6)
    assert (answers[..., 4:].sum(dim=-1) < 1).all()  # the rest is "no object"
    assert cost_of(config).params == sum(parameter.numel() for parameter in model.parameters())
    assert cost_of(config).macs > cost_of(VIT).macs
    save(model, tmp_path / "model", classes=["cat", "dog"])
    larger = load(tmp_path / "model", image_size=64).model
    torch.testing.assert_close(larger(torch.ones(1, 3, 64, 64)), model(torch.ones(1, 3, 64, 64)))


def test_a_yolos_on_a_vit_without_a_table_of_positions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^YOLOS .*learned table"):
        YolosConfig(vit=dataclasses.replace(VIT, positions="none", rotary="dinov3"))


@pytest.mark.parametrize("levels", [(), (3.0,), (1.0, 2.0), (1.0, 1.0)])
def test_levels_that_make_no_pyramid_are_refused(levels: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="levels must be"):
        DetectorConfig(vit=VIT, levels=levels)
