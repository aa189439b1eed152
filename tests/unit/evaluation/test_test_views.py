"""Several views of a test image: which they are, their mean, and how they are reported."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitrine
from vitrine.cli.views.evaluate import lines
from vitrine.errors import ConfigError
from vitrine.evaluation.test_views import NUM_VIEWS, over_views, require_test_views, shifted
from vitrine.models import create_model

DATA = "generated:shapes?count=24&val=12&test=24&size=32&label=colour"


def test_a_shift_moves_the_image_and_mirrors_the_border() -> None:
    row = torch.arange(5.0).expand(1, 1, 5, 5)
    assert shifted(row, 1)[0, 0, 2].tolist() == [1, 0, 1, 2, 3]
    assert shifted(row, -1)[0, 0, 2].tolist() == [1, 2, 3, 4, 3]
    assert torch.equal(shifted(row.mT, 1), shifted(row, 1).mT)


def test_the_mean_weighs_whole_views_as_much_as_shifted_ones() -> None:
    images = torch.randn(3, 3, 64, 64)
    seen: list[Tensor] = []

    def model(batch: Tensor) -> Tensor:
        seen.append(batch)
        return batch[:, :, 5, 9]

    pixel = model(images) + model(images.flip(-1))
    both = over_views(model, "flip")(images)
    torch.testing.assert_close(both, pixel / 2)
    seen.clear()
    six = over_views(model, "flip-shift")(images)
    assert len(seen) == NUM_VIEWS["flip-shift"]
    # 64 px are shifted by 2: each view as a slice of the image.
    shifts = sum(images[:, :, 5 + by, 9 + by] + images[:, :, 5 + by, 63 - 9 + by] for by in (-2, 2))
    torch.testing.assert_close(six, pixel / 4 + shifts / 8)


def test_a_model_without_preference_for_a_side_gains_nothing_from_its_mirror_image() -> None:
    images = torch.randn(4, 3, 8, 8)
    mean = over_views(lambda batch: batch.mean(dim=(2, 3)), "flip")(images)
    torch.testing.assert_close(mean, images.mean(dim=(2, 3)))


def test_another_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        require_test_views("flips")
    assert caught.value.suggestions[0] == "flip"


def test_an_evaluation_states_both_accuracies_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = create_model(
        "ViT", image_size=32, patch_size=8, width=16, depth=1, num_heads=2, mlp_width=16, num_classes=8
    )
    torch.nn.init.normal_(model.head.weight)  # type: ignore[union-attr]
    vitrine.save(model, tmp_path / "model")
    common = {"split": "test", "by_order": True, "device": "cpu", "workers": 0}
    plain = vitrine.evaluate(tmp_path / "model", DATA, out=tmp_path / "plain", **common)
    result = vitrine.evaluate(tmp_path / "model", DATA, views="flip", out=tmp_path / "views", **common)
    assert result.top1 == plain.top1 and plain.top1_views is None
    assert result.views == "flip" and result.top1_views is not None
    metrics = json.loads((tmp_path / "views" / "metrics.json").read_text())
    assert metrics["extra"]["top1_flip"] == result.top1_views.value
    told = [str(line) for line in lines(result)]
    assert sum(line.startswith("Top-1") for line in told) == 2
    [of_views] = [line for line in told if "mean of 2 views (flip)" in line]
    assert str(result.top1_views) in of_views
    assert (tmp_path / "plain" / "predictions.csv").read_text() == (
        tmp_path / "views" / "predictions.csv"
    ).read_text()
