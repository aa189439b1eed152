"""T2T-ViT's files are read and written bit for bit; CPVT has our own names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from unit.checkpoints.made import images, logits, randomised

from vitrine.checkpoints import convert, load, save
from vitrine.checkpoints.layouts.t2t import T2TLayout
from vitrine.errors import CheckpointError
from vitrine.models import Model, ViTConfig, create_model


def small(name: str, **options: Any) -> Model:
    return randomised(create_model(name, image_size=32, num_classes=5, **({"depth": 2} | options)))


def official_state(model: Model) -> dict[str, torch.Tensor]:
    ours = model.state_dict()
    rules = T2TLayout().rules(model.config)
    return {rule.theirs: rule.view.apply(ours[rule.ours[0]]).clone() for rule in rules}


@pytest.mark.parametrize("name", ["T2T-ViT-7", "T2T-ViT_t-14"])
@pytest.mark.parametrize(("to", "file"), [("official", "1.safetensors"), ("npz", "1.npz")])
def test_a_t2t_vit_comes_back_with_the_same_logits(tmp_path: Path, name: str, to: str, file: str) -> None:
    model = small(name)
    loaded = load(save(model, tmp_path / file, to=to))
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
    assert loaded.model.config == model.config


@pytest.mark.parametrize("name", ["T2T-ViT-7", "T2T-ViT_t-14"])
def test_averaged_weights_are_preferred_in_the_authors_archives(tmp_path: Path, name: str) -> None:
    model = small(name)
    state = {f"module.{key}": value for key, value in official_state(model).items()}
    bad = {key: torch.zeros_like(value) for key, value in state.items()}
    torch.save({"arch": name, "state_dict": bad, "state_dict_ema": state}, tmp_path / "81.5.pth.tar")
    loaded = load(tmp_path / "81.5.pth.tar")
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
    assert loaded.preprocess.crop_fraction == 0.9
    assert loaded.preprocess.mean == (0.485, 0.456, 0.406)
    trained = {key for key, value in loaded.model.named_parameters() if value.requires_grad}
    assert "positions.0.table" not in trained


def test_the_file_has_the_authors_names_and_shapes(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = create_model("t2t_vit_7")
    ours = model.state_dict()
    rules = T2TLayout().rules(model.config)
    shapes = {rule.theirs: tuple(rule.view.apply(ours[rule.ours[0]]).shape) for rule in rules}
    assert len(shapes) == 111
    assert shapes["tokens_to_token.attention2.kqv.weight"] == (192, 576)
    assert shapes["tokens_to_token.project.weight"] == (256, 576)
    assert shapes["pos_embed"] == (1, 197, 256)


def test_conversion_is_exact_both_ways_and_at_another_size(tmp_path: Path) -> None:
    save_file(official_state(small("T2T-ViT-7")), tmp_path / "theirs.safetensors")
    done = convert(tmp_path / "theirs.safetensors", tmp_path / "ours", to="vitrine")
    back = convert(tmp_path / "ours", tmp_path / "back.safetensors", to="official")
    assert done.num_identical == len(done.tensors) and back.num_identical == len(back.tensors)
    larger = load(tmp_path / "ours", image_size=48).model
    assert larger.config.image_size == (48, 48)
    assert logits(larger, images(larger)).isfinite().all()


def test_another_number_of_heads_is_told_by_options(tmp_path: Path) -> None:
    model = small("T2T-ViT-14-resnext")
    save_file(official_state(model), tmp_path / "resnext.safetensors")
    loaded = load(tmp_path / "resnext.safetensors", options={"num_heads": 32})
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


def test_a_t2t_vit_with_other_parts_is_refused_by_the_authors_layout(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="registers"):
        save(small("T2T-ViT-7", num_registers=2), tmp_path / "a.safetensors", to="official")


@pytest.mark.parametrize("name", ["CPVT-Ti", "CPVT-Ti-GAP"])
def test_cpvt_is_saved_under_our_names_and_read_without_a_record(tmp_path: Path, name: str) -> None:
    model = small(name)
    saved = load(save(model, tmp_path / "folder"))
    assert saved.model.config == model.config
    save_file(model.state_dict(), tmp_path / "bare.safetensors")
    bare = load(tmp_path / "bare.safetensors", image_size=32)
    assert isinstance(bare.model.config, ViTConfig) and bare.model.config.peg_layers == (0,)
    for loaded in (saved, bare):
        assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
