"""Boxes from the command line: fine-tune, evaluate, predict, resume to the same bits, refuse what does not go."""

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
from box_scenes import HEIGHT, WIDTH, coco_boxes, voc_boxes
from dense import saved_vit
from journeys.commandline import assert_refused, inside, losses
from safetensors.torch import load_file

import vitrine
from vitrine.errors import ConfigError
from vitrine.training.loop import Run

SMALL = (
    "--size", "48", "--batch-size", "6", "--device", "cpu", "--workers", "0", "--log-every", "5",
    "--checkpoint-every", "2", "--precision", "fp32", "--set", "objective.width=24", "--set", "objective.num_convs=1",
    "--set", "objective.scale=[0.7,1.1]", "--set", "training.layer_decay=1", "--set", "objective.most_objects=8",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coco_boxes(tmp_path_factory.mktemp("boxes"), train=24, val=6)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_vit(tmp_path_factory.mktemp("weights") / "vit", image_size=48)


@pytest.fixture(scope="module")
def run(data: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector, trained until it finds the rectangles."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ("--steps", "120", "--lr", "0.004", "--evaluate-every", "120", "--out", folder)
    done = inside("finetune", data, "--model", weights, *SMALL, *options)
    assert done.returncode == 0, done.stderr
    assert "AP50" in done.stdout
    return folder


def test_data_with_boxes_is_learned_without_being_told(run: Path) -> None:
    curve = losses(run)
    assert sum(curve[-3:]) < 0.8 * sum(curve[:3])
    record = json.loads((run / "run.json").read_text())
    assert (record["objective"], record["model"]["kind"]) == ("detection", "Detector")
    assert vitrine.load(run).classes == ("green", "blue")


def test_training_evaluating_and_predicting_agree(run: Path, data: Path, tmp_path: Path) -> None:
    """The score of training is that of `evaluate`, and that of what `predict` writes against the annotations."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (trained,) = (row for row in rows if "val_AP" in row)
    evaluated = vitrine.evaluate(run, data, out=tmp_path / "evaluation", device="cpu")
    assert evaluated.numbers["AP"] == pytest.approx(trained["val_AP"], abs=1e-6)
    assert evaluated.numbers["AP50"] > 0.5
    page = (tmp_path / "evaluation" / "report.html").read_text()
    assert "% AP50" in page
    assert "Classes, worst first" in page
    predicted = vitrine.predict(run, data / "val2017", out=tmp_path / "predicted", device="cpu")
    assert sum(predicted.counts.values()) > 4
    assert (tmp_path / "predicted" / "overlays" / "100.jpg").is_file()
    table = (tmp_path / "predicted" / "predictions.csv").read_text().splitlines()
    assert len(table) == 1 + sum(predicted.counts.values())
    # The results number pictures and classes as pictures.json does; the annotations are given the same numbers.
    truth = json.loads((data / "annotations" / "instances_val2017.json").read_text())
    numbered = json.loads((tmp_path / "predicted" / "pictures.json").read_text())
    picture = {Path(one["file_name"]).name: one["id"] for one in numbered["images"]}
    category = {one["name"]: one["id"] for one in numbered["categories"]}
    name_of = {one["id"]: one["name"] for one in truth["categories"]}
    file_of = {one["id"]: one["file_name"] for one in truth["images"]}
    for one in truth["annotations"]:
        one["image_id"] = picture[file_of[one["image_id"]]]
        one["category_id"] = category[name_of[one["category_id"]]]
    truth |= {"images": numbered["images"], "categories": numbered["categories"]}
    assert {(one["height"], one["width"]) for one in numbered["images"]} == {(HEIGHT, WIDTH)}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    again = vitrine.evaluate(
        tmp_path / "predicted" / "detections.json", tmp_path / "truth.json", out=tmp_path / "files"
    )
    assert again.numbers["AP"] == pytest.approx(evaluated.numbers["AP"], abs=0.01)  # rounded to 0.01 px
    assert again.numbers["AR100"] == pytest.approx(evaluated.numbers["AR100"], abs=0.01)


def test_a_broken_picture_gets_a_row_and_no_overlay(run: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    shutil.copy(data / "val2017" / "101.png", tmp_path / "pictures")
    done = inside("predict", run, tmp_path / "pictures", "--out", tmp_path / "out", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "2 pictures; 1 cannot" in done.stdout
    assert [path.name for path in (tmp_path / "out" / "overlays").iterdir()] == ["101.jpg"]
    assert "broken.jpg" in (tmp_path / "out" / "predictions.csv").read_text()


@pytest.mark.parametrize("recipe", ["boxes", "yolos"])
def test_a_stopped_run_on_boxes_resumes_to_the_same_bits(
    recipe: str, data: Path, weights: Path, tmp_path: Path
) -> None:
    log = Run.log

    def stop(self: Run, *given: object, **options: object) -> str:
        self.wants_to_stop = self.state.step == 3
        return log(self, *given, **options)

    options = (data, "--model", weights, "--recipe", recipe, *SMALL, "--steps", "5", "--log-every", "1")
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


def test_what_does_not_go_with_boxes_is_refused(run: Path, data: Path, weights: Path, tmp_path: Path) -> None:
    start = ("finetune", data, "--model", weights, "--out", tmp_path / "run")
    assert_refused(inside(*start, "--fast"), "boxes", error=ConfigError, option="fast")
    assert_refused(
        inside(*start, "--recipe", "masks"), "masks, and", "boxes", error=ConfigError, option="recipe"
    )
    assert_refused(inside(*start, "--task", "classification"), "has boxes, not classes")
    assert_refused(inside(*start, "--set", "objective.levels=[3]"), "levels must be")
    labelled = inside("predict", run, data / "val2017", "--top", "2")
    assert_refused(labelled, "predicts boxes", error=ConfigError, option="top")
    other = voc_boxes(tmp_path / "other", train=1, val=1)
    text = (other / "Annotations" / "100.xml").read_text().replace("green", "red").replace("blue", "red")
    (other / "Annotations" / "100.xml").write_text(text)
    refused = inside("evaluate", run, other, "--device", "cpu", "--out", tmp_path / "out")
    assert_refused(refused, str(other), "class red", error=ConfigError)
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
def test_recorded_steps_of_a_detector_train_as_launched_ones_do(
    data: Path, weights: Path, tmp_path: Path
) -> None:
    """The recipe records its steps as CUDA graphs; elsewhere they are launched."""
    curves = []
    for graphs in ("false", "true"):
        options = (*SMALL, "--device", "cuda", "--log-every", "1", "--steps", "12", "--evaluate-every", "12")
        out = tmp_path / graphs
        done = inside(
            "finetune", data, "--model", weights, *options, "--set", f"training.graphs={graphs}", "--out", out
        )
        assert done.returncode == 0, done.stderr
        curves.append(losses(out))
    # In fp32; convolutions on CUDA may add in another order.
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
