"""CLIP's image tower in transformers' names: its activation is read, assumed with a note, or refused."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from unit.checkpoints.made import small_vit

from vitrine.checkpoints import load, save
from vitrine.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = small_vit(embedding_norm=True, patch_bias=False, num_classes=None, activation="quick_gelu")
    return save(model, tmp_path / "clip", to="hf")


def without_ours(folder: Path, **changed: str) -> None:
    """Leave the config as transformers writes it, with other values."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.pop("vitrine", None)
    tower = config.get("vision_config", config)
    file.write_text(json.dumps({**config, "vision_config": {**tower, **changed}}))


def test_the_activation_of_the_config_is_read(folder: Path) -> None:
    without_ours(folder, hidden_act="gelu")
    assert load(folder).model.config.activation == "gelu"


def test_an_activation_that_is_not_known_is_refused(folder: Path) -> None:
    without_ours(folder, hidden_act="mish")
    with pytest.raises(CheckpointError, match="unknown activation 'mish'; known: "):
        load(folder)


def test_without_a_config_openais_activation_is_assumed_with_a_note(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.safetensors"
    save_file(load_file(folder / "model.safetensors"), bare)
    loaded = load(bare)
    assert loaded.model.config.activation == "quick_gelu"
    assert any("quick_gelu assumed" in note for note in loaded.notes)
