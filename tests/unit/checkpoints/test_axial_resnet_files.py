"""AxialResNets are saved under our names; Axial-DeepLab's files, batch norm's statistics included, are read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from unit.checkpoints.made import images, logits, randomised

from vitrine.checkpoints import load, save
from vitrine.checkpoints.layouts.axial_deeplab import AxialDeepLabLayout
from vitrine.errors import CheckpointError, VitrineError
from vitrine.models import AxialResNetConfig, Model, create_model

SMALL = {"image_size": (64, 96), "num_classes": 5, "units": (1, 2, 1), "width": 32}


def small(name: str = "AxialResNet-50", **options: Any) -> Model:
    model = randomised(create_model(name, **(SMALL | options)))
    for buffer_name, values in model.named_buffers():
        if buffer_name.endswith("running_var"):
            values.add_(torch.rand(values.shape, generator=torch.Generator().manual_seed(2)))
    return model


def published(model: Model) -> dict[str, torch.Tensor]:
    """Return the state as Axial-DeepLab's code has it, with its tables of indices."""
    ours = model.state_dict()
    state = {
        rule.theirs: rule.view.apply(ours[rule.ours[0]]).clone()
        for rule in AxialDeepLabLayout().rules(model.config)
    }
    tables = [name for name in state if name.endswith(".relative")]
    return state | {name.replace("relative", "flatten_index"): torch.arange(9) for name in tables}


@pytest.mark.parametrize("name", ["AxialResNet-50", "Axial-ResNet-S"])
def test_a_saved_model_comes_back_with_the_same_logits(name: str, tmp_path: Path) -> None:
    model = small(name)
    loaded = load(save(model, tmp_path / "model"))
    assert loaded.model.config == model.config
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


def test_another_image_size_resamples_every_table(tmp_path: Path) -> None:
    model = small()
    loaded = load(save(model, tmp_path / "model"), image_size=(96, 64))
    assert loaded.model.config.image_size == (96, 64)
    batch = torch.randn(2, 3, 96, 64)
    # The model resamples for a batch of another size as loading does once.
    torch.testing.assert_close(logits(loaded.model, batch), logits(model, batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("outer", [None, "state_dict", "net"])
def test_a_file_of_axial_deeplab_determines_the_whole_model(outer: str | None, tmp_path: Path) -> None:
    model = small("Axial-ResNet-S")
    state = published(model)
    torch.save(state if outer is None else {outer: state, "epoch": 3}, tmp_path / "axial.pth")
    loaded = load(tmp_path / "axial.pth")
    assert loaded.model.config == model.config
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
    assert (loaded.preprocess.rule, loaded.preprocess.mean[0]) == ("shorter", 0.485)


def test_names_of_a_file_are_those_of_the_published_code() -> None:
    with torch.device("meta"):
        model = create_model("axial26s")
    assert isinstance(model.config, AxialResNetConfig)
    names = {rule.theirs for rule in AxialDeepLabLayout().rules(model.config)}
    for name in (
        "layer1.0.hight_block.relative",
        "layer3.3.width_block.bn_similarity.running_mean",
        "layer4.0.downsample.1.num_batches_tracked",
        "layer2.1.conv_up.weight",
        "fc.bias",
    ):
        assert name in names
    assert len(names) == len(model.state_dict())


def test_a_damaged_file_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    state = published(small("Axial-ResNet-S"))
    state["layer1.0.conv_down.weight"] = torch.zeros(33, 32, 1, 1)
    torch.save(state, tmp_path / "axial.pth")
    with pytest.raises(CheckpointError, match="attention of 33 channels"):
        load(tmp_path / "axial.pth")


@pytest.mark.parametrize("to", ["official", "timm", "hf", "torchvision"])
def test_layouts_that_cannot_hold_an_axialresnet_name_the_one_that_can(to: Any, tmp_path: Path) -> None:
    with pytest.raises(VitrineError, match="the layout vitrine can"):
        save(small(), tmp_path / "model", to=to)
