"""The bundled model: the files that ship with the package, and what its card promises.

A checkout without the trained weights fails here: they are part of the package.
"""

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch
from boxes import untrained_box
from safetensors import safe_open

import vitrine
from vitrine.checkpoints import locating
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.opening import open_splits
from vitrine.errors import CheckpointError
from vitrine.evaluation.features import extract_features
from vitrine.models import ViTConfig

BOX = locating.BOX_FOLDER
MOST_BYTES = 12_000_000
NUM_CLASSES = 200


def test_the_whole_folder_is_small_and_every_tensor_is_half_precision() -> None:
    assert sum(path.stat().st_size for path in BOX.iterdir()) <= MOST_BYTES
    with safe_open(BOX / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118


def test_the_folder_holds_what_a_saved_model_holds_and_git_keeps_all_of_it() -> None:
    files = {path.name for path in BOX.iterdir()}
    assert files == {"README.md", "config.json", "model.safetensors", "preprocessor_config.json"}
    if shutil.which("git"):  # the package is built from what git does not ignore
        ignored = subprocess.run(["git", "check-ignore", *files], cwd=BOX, capture_output=True, text=True)
        assert ignored.stdout == ""


def test_it_is_a_vit_tiny_at_224_pixels_with_200_named_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("loading the box must not use the network")

    monkeypatch.setattr(socket, "socket", refuse)
    loaded = vitrine.load("box")
    config = loaded.model.config
    assert isinstance(config, ViTConfig)
    assert (loaded.record.variant, config.image_size, config.num_classes) == (
        "ViT-Ti/16",
        (224, 224),
        NUM_CLASSES,
    )
    assert config.reads_class_token
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.classes is not None
    assert len(set(loaded.classes)) == NUM_CLASSES
    assert not [name for name in loaded.classes if re.fullmatch(r"n\d+|\d+|", name)]  # words, not numbers
    assert loaded.preprocess.size == (224, 224)


def test_the_card_names_data_licence_limits_and_figures() -> None:
    card = (BOX / "README.md").read_text(encoding="utf-8")
    front = card.split("---")[1]
    assert re.search(r"^license: \S+", front, flags=re.MULTILINE)
    headings = {line.removeprefix("## ").lower() for line in card.splitlines() if line.startswith("## ")}
    assert {"data", "licence", "limits", "figures"} <= headings
    for word in ("Tiny-ImageNet", "DINOv2", "distil", "Pets"):
        assert word in card
    figures = card.split("## Figures")[1].split("\n## ")[0]
    assert len(re.findall(r"\d+\.\d ?%", figures)) >= 3  # few-shot Pets, its own classes, fine-tuned Pets
    assert "vitrine fewshot" in figures  # a figure counts only with its command


def test_its_features_tell_shapes_apart_better_than_those_of_fresh_weights(tmp_path: Path) -> None:
    splits = open_splits("generated:shapes?size=96&count=120&test=120&label=texture&seed=5")

    def accuracy(model: str | Path) -> float:
        loaded = vitrine.load(model, image_size=96)
        train, test = (
            extract_features(loaded.model, splits[name], preprocess=loaded.preprocess, cache=False)
            for name in ("train", "test")
        )
        scores = vitrine.fewshot_accuracy(
            train.rows, train.labels, test.rows, test.labels, shots=[10], l2=1.0
        )
        return scores.score(10).mean

    fresh = accuracy(untrained_box(tmp_path / "untrained", image_size=96, published=True))
    assert accuracy("box") > fresh + 0.1


def test_a_copy_without_the_weights_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locating, "BOX_FOLDER", tmp_path)
    with pytest.raises(CheckpointError, match="without"):
        vitrine.load("box")


def test_half_precision_on_disk_is_single_precision_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = untrained_box(tmp_path / "made", image_size=32, num_classes=7, published=True)
    monkeypatch.setattr(locating, "BOX_FOLDER", folder)
    assert json.loads((folder / "config.json").read_text())["vitrine"]["variant"] == "ViT-Ti/16"
    loaded = vitrine.load("box")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert isinstance(loaded.preprocess, Preprocess)
    assert loaded.classes is not None
    assert len(loaded.classes) == 7


def test_the_name_is_the_boxs_own_even_where_a_folder_is_called_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = untrained_box(tmp_path / "made", image_size=32, num_classes=7)
    untrained_box(tmp_path / "box", image_size=32, num_classes=3)
    monkeypatch.setattr(locating, "BOX_FOLDER", inside)
    assert vitrine.load("box").model.config.num_classes == 7
    assert vitrine.load("./box").model.config.num_classes == 3
