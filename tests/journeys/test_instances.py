"""Masks of objects from the command line: fine-tune, evaluate, predict, resume to the same bits, refuse."""

import contextlib
import io
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from dense import saved_vit
from instance_scenes import coco_outlines, voc_objects
from journeys.commandline import assert_refused, inside, losses
from PIL import Image
from safetensors.torch import load_file

import vitrine
from vitrine.data.decoding.coco_masks import decode_segmentation, encode_segmentation, runs_of
from vitrine.errors import ConfigError
from vitrine.evaluation.detection import NAMES
from vitrine.training.loop import Run

SMALL = (
    "--size", "48", "--batch-size", "6", "--device", "cpu", "--workers", "0", "--log-every", "5",
    "--checkpoint-every", "2", "--precision", "fp32", "--set", "objective.num_queries=8",
    "--set", "objective.num_blocks=1", "--set", "objective.num_points=200", "--set", "objective.scale=[0.7,1.1]",
    "--set", "training.layer_decay=1", "--set", "objective.most_objects=8", "--set", "training.warmup_steps=10",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with outlines; in each validation picture one more object that is a crowd, as runs."""
    root = coco_outlines(tmp_path_factory.mktemp("outlines"), train=24, val=6)
    file = root / "annotations" / "instances_val2017.json"
    values = json.loads(file.read_text())
    for number, image in enumerate(values["images"]):
        mask = np.zeros((48, 64), dtype=bool)
        mask[4 * number : 4 * number + 24, :40] = True
        values["annotations"].append(
            {
                "id": 9000 + number, "image_id": image["id"], "category_id": (3, 7)[number % 2], "iscrowd": 1,
                "segmentation": runs_of(mask), "bbox": [0, 4 * number, 40, 24], "area": 960,
            }
        )  # fmt: skip
    file.write_text(json.dumps(values))
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_vit(tmp_path_factory.mktemp("weights") / "vit", image_size=48)


@pytest.fixture(scope="module")
def run(data: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of objects, trained until it finds some."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ("--steps", "120", "--lr", "0.004", "--evaluate-every", "120", "--out", folder)
    done = inside("finetune", data, "--model", weights, *SMALL, *options)
    assert done.returncode == 0, done.stderr
    assert "AP50" in done.stdout
    return folder


def test_outlines_are_learned_without_being_told(run: Path) -> None:
    curve = losses(run)
    assert sum(curve[-3:]) < 0.8 * sum(curve[:3])
    record = json.loads((run / "run.json").read_text())
    assert (record["objective"], record["model"]["kind"]) == ("instance-segmentation", "InstanceEoMT")
    assert vitrine.load(run).classes == ("green", "blue")


@pytest.fixture(scope="module")
def predicted(run: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("predicted") / "out"
    done = inside("predict", run, data / "val2017", "--out", out, "--device", "cpu", "--workers", "0")
    assert done.returncode == 0, done.stderr
    return out


def test_training_evaluating_and_pycocotools_agree(
    run: Path, data: Path, predicted: Path, tmp_path: Path
) -> None:
    """The score of training is that of `evaluate`, and that of pycocotools on what `predict` writes."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (trained,) = (row for row in rows if "val_AP" in row)
    evaluated = vitrine.evaluate(run, data, out=tmp_path / "evaluation", device="cpu")
    assert evaluated.numbers["AP"] == pytest.approx(trained["val_AP"], abs=1e-6)
    assert evaluated.numbers["AP50"] > 0.4
    assert "masks with any score" in (tmp_path / "evaluation" / "report.html").read_text()
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    truth = json.loads((data / "annotations" / "instances_val2017.json").read_text())
    numbered = json.loads((predicted / "pictures.json").read_text())
    picture = {Path(one["file_name"]).name: one["id"] for one in numbered["images"]}
    of_picture = {one["id"]: picture[one["file_name"]] for one in truth["images"]}
    for one in truth["annotations"]:
        one["image_id"], one["category_id"] = of_picture[one["image_id"]], {3: 1, 7: 2}[one["category_id"]]
    truth |= {"images": numbered["images"], "categories": numbered["categories"]}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    with contextlib.redirect_stdout(io.StringIO()):
        reference = coco.COCO(str(tmp_path / "truth.json"))
        results = reference.loadRes(str(predicted / "detections.json"))
        evaluation = cocoeval.COCOeval(reference, results, "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    ours = [evaluated.numbers[name] for name in NAMES]
    np.testing.assert_allclose(ours, evaluation.stats, rtol=0, atol=1e-9)
    again = vitrine.evaluate(predicted / "detections.json", tmp_path / "truth.json", out=tmp_path / "files")
    np.testing.assert_allclose(ours, [again.numbers[name] for name in NAMES], rtol=0, atol=1e-12)


def test_every_object_is_in_the_table_the_mask_and_the_results(predicted: Path) -> None:
    numbered = json.loads((predicted / "pictures.json").read_text())
    results = json.loads((predicted / "detections.json").read_text())
    table = (predicted / "predictions.csv").read_text().splitlines()
    assert table[0].endswith("number,pixels,error")
    sure = [one for one in results if one["score"] >= 0.3]
    assert len(sure) == len(table) - 1 > 3
    for image in numbered["images"]:
        own = [one for one in sure if one["image_id"] == image["id"]]
        stem = Path(image["file_name"]).stem
        values = np.asarray(Image.open(predicted / "masks" / f"{stem}.png"))
        masks = [decode_segmentation(one["segmentation"], values.shape, where="a result") for one in own]
        assert ((values > 0) == np.any(masks, axis=0)).all()
        if own:  # the best is on top
            assert ((values == 1) == masks[0]).all()
        assert (predicted / "overlays" / f"{stem}.jpg").is_file()


def test_a_stopped_run_on_outlines_resumes_to_the_same_bits(
    data: Path, weights: Path, tmp_path: Path
) -> None:
    log = Run.log

    def stop(self: Run, *given: object, **options: object) -> str:
        self.wants_to_stop = self.state.step == 3
        return log(self, *given, **options)

    options = (data, "--model", weights, *SMALL, "--steps", "5", "--log-every", "1")
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


def test_classes_that_the_model_does_not_have_are_refused(run: Path, tmp_path: Path) -> None:
    root = voc_objects(tmp_path / "voc", train=1, val=1)
    refused = inside("evaluate", run, root, "--device", "cpu", "--out", tmp_path / "out")
    assert_refused(refused, str(root), "class aeroplane", error=ConfigError)


def test_what_does_not_go_with_outlines_is_refused(
    run: Path, data: Path, weights: Path, tmp_path: Path
) -> None:
    start = ("finetune", data, "--model", weights, "--out", tmp_path / "run")
    assert_refused(inside(*start, "--fast"), "instances", error=ConfigError, option="fast")
    assert_refused(inside(*start, "--recipe", "boxes"), "boxes, and", "instances", option="recipe")
    assert_refused(inside(*start, "--set", "objective.most_objects=101"), "most_objects must be")
    assert_refused(inside("predict", run, data / "val2017", "--top", "2"), "predicts instances", option="top")
    assert not (tmp_path / "run").exists()


def test_runs_as_text_are_read_as_they_were_written() -> None:
    rng = np.random.default_rng(0)
    for size in ((1, 1), (7, 5), (300, 400)):
        for share in (0, 0.02, 0.5, 1):
            mask = rng.random(size) < share
            assert (decode_segmentation(encode_segmentation(mask), size, where="a mask") == mask).all()


def test_voc_is_learned_as_objects_where_the_task_says_so(weights: Path, tmp_path: Path) -> None:
    root = voc_objects(tmp_path / "voc", train=6, val=2, border=2)
    options = (*SMALL, "--steps", "1", "--evaluate-every", "1", "--out", tmp_path / "run")
    done = inside("finetune", root, "--model", weights, "--task", "instances", *options)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["model"]["kind"] == "InstanceEoMT"
    evaluated = vitrine.evaluate(tmp_path / "run", root, out=tmp_path / "out", device="cpu")
    assert (evaluated.num_images, evaluated.num_truths) == (2, 3)
    report = vitrine.report(tmp_path / "run", device="cpu")
    assert report.file is not None
    assert "A mask is right" in report.file.read_text()
