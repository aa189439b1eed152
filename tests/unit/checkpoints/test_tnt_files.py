"""TNT's files, the authors' and timm's, are read and written bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from unit.checkpoints.made import images, logits, randomised

from vitrine.checkpoints import convert, load, save
from vitrine.checkpoints.layouts.tnt import TNTLayout
from vitrine.errors import CheckpointError
from vitrine.models import Model, create_model
from vitrine.models.tnt_config import VARIANTS

HEADS = {"num_heads": 3, "inner_num_heads": 2}
OFFICIAL_TOTALS = {"TNT-Ti": 6_114_040, "TNT-S": 23_843_848, "TNT-B": 65_554_120}


def small_tnt(**options: Any) -> Model:
    shape = {"width": 48, "depth": 2, "mlp_width": 192, "inner_width": 12, "inner_mlp_width": 48}
    return randomised(create_model("TNT-S", image_size=48, num_classes=5, **(shape | HEADS | options)))


@pytest.mark.parametrize(("to", "name"), [("official", "1.safetensors"), ("npz", "1.npz"), ("timm", "1")])
def test_a_tnt_comes_back_with_the_same_logits(tmp_path: Path, to: str, name: str) -> None:
    model = small_tnt()
    written = save(model, tmp_path / name, to=to)
    loaded = load(written, options=HEADS).model
    assert torch.equal(logits(loaded, images(model)), logits(model, images(model)))


@pytest.mark.parametrize("origin", ["official", "timm"])
def test_averaged_weights_are_preferred_in_the_authors_archives(tmp_path: Path, origin: Any) -> None:
    model, state = small_tnt(), {}
    ours = model.state_dict()
    for rule in TNTLayout(origin=origin).rules(model.config):
        state[f"module.{rule.theirs}"] = rule.view.apply(ours[rule.ours[0]]).clone()
    bad = {name: torch.zeros_like(value) for name, value in state.items()}
    torch.save({"epoch": 300, "state_dict": bad, "state_dict_ema": state}, tmp_path / "tnt.pth.tar")
    loaded = load(tmp_path / "tnt.pth.tar", options=HEADS)
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
    assert loaded.preprocess.crop_fraction == 0.9
    assert loaded.preprocess.mean == (0.5, 0.5, 0.5)


def test_conversion_to_timm_is_checked_by_timm_itself(tmp_path: Path) -> None:
    source = save(small_tnt(), tmp_path / "ours")
    done = convert(source, tmp_path / "timm", to="timm")
    assert done.num_identical == len(done.tensors)
    assert [check.largest is not None and check.largest < 5e-6 for check in done.parity] == [True] * 2
    back = convert(tmp_path / "timm", tmp_path / "back.safetensors", to="official", options=HEADS)
    assert back.num_identical == len(back.tensors)


@pytest.mark.parametrize("name", VARIANTS)
def test_an_official_file_has_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    ours = model.state_dict()
    rules = TNTLayout(origin="official").rules(model.config)
    assert sum(rule.view.apply(ours[rule.ours[0]]).numel() for rule in rules) == OFFICIAL_TOTALS[name]


def test_timms_legacy_tnt_is_refused(tmp_path: Path) -> None:
    model = small_tnt()
    ours = model.state_dict()
    rules = TNTLayout(origin="timm").rules(model.config)
    state = {rule.theirs: rule.view.apply(ours[rule.ours[0]]).clone() for rule in rules}
    state["blocks.0.proj.bias"] = torch.zeros(48)
    torch.save(state, tmp_path / "legacy.pth")
    with pytest.raises(CheckpointError, match="legacy TNT"):
        load(tmp_path / "legacy.pth")
