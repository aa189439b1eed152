"""Configs read from names and shapes of foreign files: what they lack is assumed with a note or refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from unit.checkpoints.made import small_vit

from vitrine.checkpoints import libraries, load, save
from vitrine.checkpoints.libraries import NoAnswerError, answering, import_library
from vitrine.errors import CheckpointError


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A bare file in timm's layout: tensors and nothing beside them; heads are 16 wide."""
    folder = save(small_vit(width=128, num_heads=8), tmp_path / "folder", to="timm")
    path = tmp_path / "bare.safetensors"
    save_file(load_file(folder / "model.safetensors"), path)
    return path


def changed(path: Path, **tensors: torch.Tensor | None) -> Path:
    state = load_file(path)
    for name, tensor in tensors.items():
        state.pop(name)
        if tensor is not None:
            state[name] = tensor
    save_file(state, path)
    return path


def test_heads_that_a_file_does_not_record_are_assumed_with_a_note(bare: Path) -> None:
    loaded = load(bare)
    assert loaded.model.config.num_heads == 2  # 64 channels per head, as published models have
    assert any("heads" in note for note in loaded.notes)
    assert load(bare, num_heads=8).model.config.num_heads == 8


def test_a_width_without_usual_heads_asks_for_them(tmp_path: Path) -> None:
    folder = save(small_vit(width=80, num_heads=5), tmp_path / "folder", to="timm")
    save_file(load_file(folder / "model.safetensors"), tmp_path / "bare.safetensors")
    with pytest.raises(CheckpointError) as refused:
        load(tmp_path / "bare.safetensors")
    assert [advice.option for advice in refused.value.advice] == ["num_heads"]  # type: ignore[union-attr]
    assert load(tmp_path / "bare.safetensors", num_heads=5).model.config.width == 80


def test_positions_of_no_square_grid_need_the_image_size(tmp_path: Path) -> None:
    model = small_vit(width=64, image_size=(16, 48))
    folder = save(model, tmp_path / "folder", to="timm")
    save_file(load_file(folder / "model.safetensors"), tmp_path / "bare.safetensors")
    with pytest.raises(CheckpointError):
        load(tmp_path / "bare.safetensors", num_heads=4)
    again = load(tmp_path / "bare.safetensors", num_heads=4, image_size=(16, 48))
    assert again.model.config.image_size == (16, 48)


@pytest.mark.parametrize(
    "tensors",
    [
        {"pos_embed": torch.zeros(5)},
        {"patch_embed.proj.weight": torch.zeros(128, 3)},
        {"blocks.1.mlp.fc1.weight": None},
    ],
    ids=["flat positions", "flat kernel", "missing"],
)
def test_a_tensor_of_another_form_is_refused_by_name(
    bare: Path, tensors: dict[str, torch.Tensor | None]
) -> None:
    with pytest.raises(CheckpointError) as refused:
        load(changed(bare, **tensors))
    assert next(iter(tensors)) in str(refused.value) and "\n" not in str(refused.value)


def test_a_head_without_axes_is_refused_in_one_sentence(bare: Path) -> None:
    with pytest.raises(CheckpointError) as refused:
        load(changed(bare, **{"head.weight": torch.tensor(1.0)}))
    assert "bare.safetensors" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["[1, 2]", "{"])
def test_a_config_beside_foreign_weights_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    folder = save(small_vit(), tmp_path / "folder", to="hf")
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError) as refused:
        load(folder)
    assert "config.json" in str(refused.value)


def test_preprocessing_beside_foreign_weights_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    folder = save(small_vit(), tmp_path / "folder", to="hf")
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(rules | {"image_mean": "grey"}))
    with pytest.raises(CheckpointError) as refused:
        load(folder)
    assert "preprocessing" in str(refused.value)


def test_a_library_that_cannot_answer_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, word in (
        (ImportError("no module\nmore"), "no module"),
        (ValueError("bad\nmore"), "ValueError: bad"),
    ):
        with pytest.raises(NoAnswerError) as refused, answering("timm"):
            raise error
        assert word in str(refused.value) and "more" not in str(refused.value)
    with pytest.raises(NoAnswerError) as refused:
        import_library("no_such_library_at_all")
    assert "not installed" in str(refused.value)

    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(libraries, "import_installed", broken)
    with pytest.raises(NoAnswerError) as refused:
        import_library("timm")
    assert "nms" in str(refused.value)
