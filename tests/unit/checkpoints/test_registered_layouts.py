"""Layouts from outside the package, and weights under a prefix: Lightning's checkpoints and their like."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from unit.checkpoints.made import images, logits, small_vit

import vitrine
from vitrine.checkpoints.layouts import REGISTRY, register_layout
from vitrine.checkpoints.layouts.layout import Layout
from vitrine.checkpoints.layouts.native import NativeLayout
from vitrine.checkpoints.layouts.rules import Rule
from vitrine.checkpoints.tensors import Index
from vitrine.errors import CheckpointError, ConfigError
from vitrine.models import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Shouted(NativeLayout):
    """Our own names in capitals."""

    @property
    def name(self) -> str:
        return "shouted"

    def rules(self, config: ModelConfig) -> list[Rule]:
        return [Rule(rule.theirs.upper(), rule.ours, rule.view) for rule in super().rules(config)]


def recognise(index: Index) -> Layout | None:
    return Shouted() if "BLOCKS.0.ATTENTION.TO_QKV.WEIGHT" in index else None


@pytest.fixture
def registered() -> Iterator[None]:
    register_layout("shouted", recognise=recognise, for_model=lambda config, generation: Shouted())
    yield
    del REGISTRY["shouted"]


@pytest.mark.usefixtures("registered")
def test_a_layout_from_outside_is_written_recognised_and_converted(tmp_path: Path) -> None:
    model = small_vit()
    vitrine.save(model, tmp_path / "loud", to="shouted")
    again = vitrine.load(tmp_path / "loud")
    assert torch.equal(logits(again.model, images(model)), logits(model, images(model)))
    result = vitrine.convert(tmp_path / "loud", tmp_path / "quiet", to="hf")
    assert result.exit_code == 0
    result = vitrine.convert(tmp_path / "quiet", tmp_path / "loud again", to="shouted")
    assert result.target_layout == "shouted"
    assert result.num_identical == len(result.tensors)


@pytest.mark.usefixtures("registered")
def test_a_name_is_registered_once() -> None:
    with pytest.raises(ConfigError, match="shouted"):
        register_layout("shouted", recognise=recognise)


def test_an_unknown_target_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nearest: torchvision") as caught:
        vitrine.save(small_vit(), tmp_path / "m", to="torchvisoin")
    assert caught.value.option == "to"


@pytest.mark.parametrize("prefix", ["model.", "net.", "module.", "model.net.", "encoder.vit_model."])
def test_a_lightning_checkpoint_is_read(prefix: str, tmp_path: Path) -> None:
    model = small_vit()
    tensors = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    checkpoint = {
        "epoch": 3,
        "global_step": 100,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {**tensors, "criterion.weight": torch.ones(5), "train_accuracy.tp": torch.tensor(3)},
        "hyper_parameters": {"lr": 0.1, "args": argparse.Namespace(root=Path("/data"))},
        "optimizer_states": [{"state": {0: {"momentum": torch.ones(3)}}}],
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
    }
    torch.save(checkpoint, tmp_path / "last.ckpt")
    loaded = vitrine.load(tmp_path / "last.ckpt", num_heads=4)
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
    assert any("2 other tensors skipped" in note for note in loaded.notes)
    assert vitrine.load(tmp_path, num_heads=4).classes is None


def test_a_prefix_in_a_safetensors_file_is_no_obstacle(tmp_path: Path) -> None:
    model = small_vit()
    save_file(
        {f"student.{name}": value.contiguous() for name, value in model.state_dict().items()},
        tmp_path / "m.safetensors",
    )
    loaded = vitrine.load(tmp_path / "m.safetensors", num_heads=4)
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


def test_two_models_in_one_file_are_named_and_none_is_chosen(tmp_path: Path) -> None:
    state = small_vit().state_dict()
    both = {f"{who}.{name}": value for who in ("student", "teacher_net") for name, value in state.items()}
    torch.save(both, tmp_path / "both.pt")
    with pytest.raises(CheckpointError, match=r"several models \(student, teacher_net\)"):
        vitrine.load(tmp_path / "both.pt")


def test_a_lightning_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return print, ("run",)

    torch.save({"state_dict": small_vit().state_dict(), "hyper_parameters": Harmful()}, tmp_path / "x.ckpt")
    with pytest.raises(CheckpointError, match=r"x\.ckpt .*Lightning .*would run code"):
        vitrine.load(tmp_path / "x.ckpt")
