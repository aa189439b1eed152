"""Masks from the command line: fine-tune, resume to the same bits, refuse what does not go with masks."""

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
from dense import saved_vit
from journeys.commandline import assert_refused, inside, losses
from masks import mask_folders
from safetensors.torch import load_file

import vitrine
from vitrine.errors import ConfigError, DataError
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
    return saved_vit(tmp_path_factory.mktemp("weights") / "vit", image_size=32)


@pytest.fixture(scope="module")
def run(data: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear head, trained for a few steps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ("--steps", "25", "--lr", "0.02", "--evaluate-every", "25", "--out", folder)
    done = inside("finetune", data, "--model", weights, *SMALL, *options)
    assert done.returncode == 0, done.stderr
    assert "Mean IoU" in done.stdout
    return folder


def mean_iou(run: Path) -> float:
    """Return the score of a run's only evaluation."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (value,) = (row["val_mean_iou"] for row in rows if "val_mean_iou" in row)
    return float(value)


def test_data_with_masks_is_segmented_without_being_told(run: Path) -> None:
    assert losses(run)[-1] < 0.8 * losses(run)[0]
    record = json.loads((run / "run.json").read_text())
    assert (record["objective"], record["model"]["kind"]) == ("segmentation", "LinearSegmenter")
    loaded = vitrine.load(run)
    assert loaded.classes == ("ground", "green", "blue")


def test_evaluating_and_predicting_give_the_score_of_training(run: Path, data: Path, tmp_path: Path) -> None:
    """The run, `evaluate`, and the masks that `predict` writes, compared with the true ones, agree."""
    evaluated = vitrine.evaluate(run, data, out=tmp_path / "evaluation", device="cpu")
    assert evaluated.mean_iou == pytest.approx(mean_iou(run))
    assert (evaluated.split, evaluated.num_images) == ("val", 4)
    page = (tmp_path / "evaluation" / "report.html").read_text()
    assert "Worst pictures" in page
    assert "% mean IoU" in page
    predicted = vitrine.predict(run, data / "images" / "val", out=tmp_path / "predicted", device="cpu")
    assert sum(predicted.shares.values()) == pytest.approx(1)
    assert (tmp_path / "predicted" / "overlays" / "000.jpg").is_file()
    compared = inside(
        "evaluate", tmp_path / "predicted" / "masks", data / "masks" / "val", "--out", tmp_path / "files"
    )
    assert compared.returncode == 0, compared.stderr
    again = json.loads((tmp_path / "files" / "metrics.json").read_text())
    assert again["mean_iou"] == pytest.approx(evaluated.mean_iou)


def test_a_broken_picture_gets_a_row_and_no_mask(run: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    shutil.copy(data / "images" / "val" / "001.png", tmp_path / "pictures")
    done = inside("predict", run, tmp_path / "pictures", "--out", tmp_path / "out", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "2 pictures; 1 cannot" in done.stdout
    assert [path.name for path in (tmp_path / "out" / "masks").iterdir()] == ["001.png"]
    assert "broken.jpg" in (tmp_path / "out" / "predictions.csv").read_text()


def test_missing_masks_and_other_classes_are_refused(run: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    shutil.copy(data / "masks" / "val" / "000.png", tmp_path / "few")
    refused = inside("evaluate", tmp_path / "few", data / "masks" / "val", "--out", tmp_path / "out")
    assert_refused(refused, "3 pictures: 001, 002, 003", error=DataError)
    other = mask_folders(tmp_path / "other", train=1, val=1)
    (other / "classes.txt").write_text("ground\nred\nblue\n")
    refused = inside("evaluate", run, other, "--device", "cpu", "--out", tmp_path / "out")
    assert_refused(refused, str(other), "class red", error=ConfigError)


@pytest.mark.parametrize("recipe", [pytest.param("segmenter", marks=pytest.mark.slow), "eomt", "masks"])
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
    assert_refused(inside(*run, "--fast"), "masks", error=ConfigError, option="fast")
    assert_refused(
        inside(*run, "--recipe", "photos"), "classes, and", "masks", error=ConfigError, option="recipe"
    )
    assert_refused(inside(*run, "--task", "classification"), "has masks, not classes")
    assert_refused(inside(*run, "--task", "segmentatoin"), "nearest: segmentation")
    assert_refused(inside(*run, "--set", "augment.cutmix=1"), "augment.cutmix=1.0 does not go with")
    assert_refused(inside(*run, "--set", "objective.decoder=liner"), "nearest: linear")
    assert not (tmp_path / "run").exists()


def test_report_shows_the_worst_pictures_and_what_was_confused(run: Path) -> None:
    report = vitrine.report(run, device="cpu")
    assert report.dense == f"{100 * mean_iou(run):.1f} % mean IoU"
    assert report.file is not None
    page = report.file.read_text()
    assert "Worst pictures" in page
    assert "taken for" in page
    assert "Classes, worst first" in page
