"""Masks from the command line: fine-tune, resume to the same bits, refuse what does not go with masks."""

import json
from pathlib import Path
from unittest import mock

import pytest
from journeys.commandline import assert_refused, inside, losses
from masks import mask_folders
from safetensors.torch import load_file

import vitrine
from vitrine.training.loop import Run

SMALL = (
    "--size", "32", "--batch-size", "4", "--device", "cpu", "--workers", "0", "--log-every", "1",
    "--checkpoint-every", "2", "--precision", "fp32",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mask_folders(tmp_path_factory.mktemp("masks"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ViT, as if it were trained."""
    place = tmp_path_factory.mktemp("weights") / "vit"
    model = vitrine.create_model(
        "ViT", num_classes=None, image_size=32, patch_size=8, width=32, depth=2, num_heads=2, mlp_width=64
    )
    return vitrine.save(model, place)


def test_data_with_masks_is_segmented_without_being_told(data: Path, weights: Path, tmp_path: Path) -> None:
    done = inside(
        "finetune",
        data,
        "--model",
        weights,
        *SMALL,
        "--steps",
        "25",
        "--lr",
        "0.02",
        "--out",
        tmp_path / "run",
    )
    assert done.returncode == 0, done.stderr
    assert "Mean IoU" in done.stdout
    first, last = losses(tmp_path / "run")[0], losses(tmp_path / "run")[-1]
    assert last < 0.8 * first
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["objective"], record["model"]["kind"]) == ("segmentation", "LinearSegmenter")
    loaded = vitrine.load(tmp_path / "run")
    assert loaded.classes == ("ground", "green", "blue")


@pytest.mark.parametrize("recipe", ["segmenter", "eomt"])
def test_a_stopped_run_on_masks_resumes_to_the_same_bits(
    recipe: str, data: Path, weights: Path, tmp_path: Path
) -> None:
    log = Run.log

    def stop(self: Run, *given: object, **options: object) -> str:
        self.wants_to_stop = self.state.step == 3
        return log(self, *given, **options)

    options = (data, "--model", weights, "--recipe", recipe, *SMALL, "--steps", "5", "--hold-out", "0.2")
    options += (
        ("--set", "objective.num_points=16", "--set", "objective.num_blocks=1") if recipe == "eomt" else ()
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert inside("finetune", *options, "--out", whole).returncode == 0
    with mock.patch.object(Run, "log", stop):
        assert inside("finetune", *options, "--out", parts).returncode == 130
    done = inside("resume", parts)
    assert done.returncode == 0, done.stderr
    assert losses(parts) == losses(whole)
    one, other = (load_file(run / "model" / "model.safetensors") for run in (whole, parts))
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)


def test_what_does_not_go_with_masks_is_refused(data: Path, weights: Path, tmp_path: Path) -> None:
    run = ("finetune", data, "--model", weights, "--out", tmp_path / "run")
    assert_refused(inside(*run, "--fast"), "--fast: does not go with masks")
    assert_refused(inside(*run, "--recipe", "photos"), "learns classes, and the data has masks")
    assert_refused(inside(*run, "--task", "classification"), "has masks, not classes")
    assert_refused(inside(*run, "--task", "segmentatoin"), "nearest: segmentation")
    assert_refused(inside(*run, "--set", "augment.cutmix=1"), "augment.cutmix=1.0 does not go with")
    assert_refused(inside(*run, "--set", "objective.decoder=liner"), "nearest: linear")
    assert not (tmp_path / "run").exists()
