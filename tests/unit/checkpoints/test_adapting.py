"""Weights adapted to another image size, other channels and other classes: the same function where it can be."""

from pathlib import Path

import pytest
import torch
from unit.models.small import small_model

from vitrine.checkpoints import load, save
from vitrine.errors import ConfigError

POSITIONS = (
    "class token",
    "2-D positions",
    "sincos positions",
    "relative positions",
    "1-D positions every layer",
)


def stirred(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = small_model(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("kind", POSITIONS)
def test_loading_at_another_size_equals_running_the_model_at_that_size(kind: str, tmp_path: Path) -> None:
    """A model resamples its positions for any grid; saved weights are resampled by the same rule."""
    model = stirred(kind)
    save(model, tmp_path / "model")  # type: ignore[arg-type]
    height, width = (2 * side for side in model.config.image_size)  # type: ignore[union-attr]
    images = torch.randn(2, 3, height, width)
    resized = load(tmp_path / "model", image_size=(height, width))
    assert resized.model.config.image_size == (height, width)
    with torch.no_grad():
        torch.testing.assert_close(resized.model.eval()(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["class token", "hybrid", "BiT"])
def test_one_channel_gives_on_grey_images_what_three_equal_channels_give(kind: str, tmp_path: Path) -> None:
    model = stirred(kind)
    save(model, tmp_path / "model")  # type: ignore[arg-type]
    grey = load(tmp_path / "model", channels=1)
    images = torch.randn(2, 1, *model.config.image_size)  # type: ignore[union-attr]
    with torch.no_grad():
        expected = model(images.expand(-1, 3, -1, -1))
        # Standardised kernels of a stem lose their scale when channels are summed, so only a ViT is equal.
        if kind == "class token":
            torch.testing.assert_close(grey.model.eval()(images), expected, rtol=1e-4, atol=1e-5)
    assert grey.model.config.channels == 1 and len(grey.preprocess.mean) == 1
    assert any("1 channel" in note for note in grey.notes)


def test_six_channels_that_repeat_three_give_what_the_three_give(tmp_path: Path) -> None:
    model = stirred("class token")
    save(model, tmp_path / "model")  # type: ignore[arg-type]
    images = torch.randn(2, 3, *model.config.image_size)  # type: ignore[union-attr]
    doubled = load(tmp_path / "model", channels=6)
    with torch.no_grad():
        torch.testing.assert_close(
            doubled.model.eval()(images.repeat(1, 2, 1, 1)), model(images), rtol=1e-4, atol=1e-5
        )
    assert len(doubled.preprocess.std) == 6


def test_no_channels_are_refused(tmp_path: Path) -> None:
    save(stirred("class token"), tmp_path / "model")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        load(tmp_path / "model", channels=0)


def test_other_classes_get_a_head_of_zeros_and_no_names(tmp_path: Path) -> None:
    model = stirred("pre-training head")
    save(model, tmp_path / "model", classes=("a", "b", "c", "d", "e"))  # type: ignore[arg-type]
    loaded = load(tmp_path / "model", num_classes=3)
    assert loaded.model.head is not None and loaded.model.head.out_features == 3
    assert not loaded.model.head.weight.any() and not loaded.model.head.bias.any()
    assert loaded.classes != ("a", "b", "c", "d", "e") and loaded.notes
