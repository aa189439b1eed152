"""From files on disk to a report: `vitrine evaluate` and `vitrine fewshot` on tiny pictures."""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import vitrine
from vitrine.cli.views.evaluate import lines
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.evaluators import EVALUATORS, register_evaluator
from vitrine.evaluation.probes import PROBES, Probe, ProbeOptions, register_probe
from vitrine.evaluation.scoring import SplitScore
from vitrine.models import create_model

from .commandline import SOURCE, assert_refused, inside, refusal
from .commandline import vitrine as run

COLOURS = {"blue": (30, 60, 220), "green": (40, 180, 60), "red": (220, 40, 40)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Colours as class folders, split into train and test."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for split, count in {"train": 6, "test": 4}.items():
        for name, colour in COLOURS.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                noise = random.integers(-30, 30, (20, 24, 3))
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A small model whose head was fitted in closed form on one flat picture of each colour."""
    torch.manual_seed(0)
    model = create_model(
        "ViT-B/16", image_size=16, num_classes=3, patch_size=8, width=16, depth=1, num_heads=2, mlp_width=32
    ).eval()
    preprocess = Preprocess(size=(16, 16))
    classes = ("red", "blue", "green")  # another order than that of the folders
    with torch.no_grad():
        flat = torch.stack(
            [preprocess(np.full((16, 16, 3), COLOURS[name], dtype=np.uint8)) for name in classes]
        )
        features = model.features(flat)["representation"]
        centred = features - features.mean(dim=0)
        model.head.weight.copy_(20 * torch.linalg.pinv(centred).T)
        model.head.bias.copy_(-(model.head.weight @ features.mean(dim=0)))
    folder = tmp_path_factory.mktemp("weights") / "model"
    vitrine.save(model, folder, preprocess=preprocess, classes=classes)
    return folder


def test_evaluate_matches_classes_by_name_and_writes_figures_predictions_and_report(
    photos, weights, tmp_path
):
    result = inside("evaluate", weights, photos, "--out", tmp_path / "out", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["num_images"] == 12
    assert said["split"] == "test"
    assert said["class_measure"] == "f1"
    assert said["extra"] == {"majority_accuracy": pytest.approx(1 / 3)}
    rows = list(csv.DictReader((tmp_path / "out" / "predictions.csv").open()))
    assert len(rows) == 12
    right = np.mean([row["label"] == row["predicted"] for row in rows])
    assert said["top1"]["value"] == right == np.mean([row["correct"] == "1" for row in rows])
    assert right > 0.9  # the head was made for these colours; by order instead of by name it would be near 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["top1"]["value"] == right
    assert [item["num_images"] for item in metrics["per_class"]] == [4, 4, 4]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "prefers-color-scheme: dark" in page
    assert "http" not in page.split("<body>")[1].replace("http://www.w3.org", "")
    assert (tmp_path / "out" / "confusion.csv").read_text().splitlines()[0].endswith("red,blue,green")
    assert not list(photos.rglob("*.json")) + list(photos.rglob("*.csv"))


def test_evaluate_shows_mistakes_and_names_unreadable_files(photos, weights, tmp_path):
    shutil.copytree(photos / "test", tmp_path / "set")
    (tmp_path / "set" / "red" / "9.png").write_text("no image")
    (tmp_path / "set" / "blue" / "0.png").rename(tmp_path / "set" / "red" / "8.png")  # a label error
    result = vitrine.evaluate(
        str(weights), str(tmp_path / "set"), out=tmp_path / "out", strict=True, device="cpu"
    )
    assert result.exit_code == 1
    assert list(result.unreadable) == ["red/9.png"]
    assert result.top5 is None  # with five classes or fewer it would be 100 %
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Most confident mistakes" in page
    assert "Likely label errors" in page
    assert "red/8.png" in page
    assert "data:image/png;base64," in page


def test_evaluate_scores_real_with_empty_lists_left_out(photos, weights, tmp_path):
    # In the order of the sorted names, which repeat over the classes: so they are made unique first.
    for index, path in enumerate(sorted((photos / "test").rglob("*.png"))):
        folder = tmp_path / "set" / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / f"ILSVRC2012_val_{12 - index:08d}.png")
    # Files 1 to 4 are red, 5 to 8 green, 9 to 12 blue; classes are numbered as the folders: blue, green, red.
    lists = [[2], [0, 2], [], [0]] + [[1]] * 4 + [[]] * 4
    (tmp_path / "real.json").write_text(json.dumps(lists))
    result = vitrine.evaluate(
        str(weights), str(tmp_path / "set"), real=tmp_path / "real.json", out=tmp_path / "out", device="cpu"
    )
    assert result.top1.value == 1.0
    assert result.num_real_images == 7
    assert result.real.value == pytest.approx(6 / 7)  # one red picture may only be called blue


def test_evaluate_of_several_labels_an_image_gives_average_precision(tmp_path):
    torch.manual_seed(0)
    data = "generated:shapes?size=16&count=8&test=40&label=colour,scale"
    num_classes = 8 + 3
    model = create_model(
        "ViT-B/16",
        image_size=16,
        num_classes=num_classes,
        patch_size=8,
        width=16,
        depth=1,
        num_heads=2,
        mlp_width=32,
    )
    model.head.weight.data.normal_()
    vitrine.save(model, tmp_path / "model", preprocess=Preprocess(size=(16, 16)))
    result = vitrine.evaluate(str(tmp_path / "model"), data, out=tmp_path / "out", device="cpu")
    assert result.top1 is None
    assert 0 < result.mean_average_precision.value < 1
    assert result.mean_average_precision.low <= result.mean_average_precision.value
    assert "mean average precision" in (tmp_path / "out" / "report.html").read_text()
    assert result.class_measure == "average_precision"
    shown = list(lines(result))
    assert any(
        isinstance(line, str) and line.startswith("Worst classes by average precision") for line in shown
    )
    assert not any("F1" in line for line in shown if isinstance(line, str))
    assert len((tmp_path / "out" / "predictions.csv").read_text().splitlines()) == 41


def test_evaluate_refuses_what_does_not_fit_in_one_sentence(photos, weights, tmp_path):
    (tmp_path / "real.json").write_text("[[1], [2]]")
    assert_refused(
        inside("evaluate", weights, photos, "--real", "real.json", "--out", "out", cwd=tmp_path),
        "real.json",
        "labels for 2 images",
        error=DataError,
    )
    for data, message in (
        (photos / "tset", "did you mean"),
        (make_folders(tmp_path / "other", "purple", "red"),
         "the label purple, which is not one of the 3 classes; they are red, blue, green"),
        (make_folders(tmp_path / "only" / "train", "red").parent, "which the model may have been trained on"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            vitrine.evaluate(str(weights), str(data), out=tmp_path / "out", device="cpu")
    with pytest.raises(ConfigError, match="nothing is ever written"):
        vitrine.evaluate(str(weights), str(photos), out=photos / "out", device="cpu")
    assert not (tmp_path / "out" / "metrics.json").exists()


def make_folders(root, *names):
    for name in names:
        (root / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(root / name / "0.png")
    return root


@pytest.mark.slow
def test_evaluate_on_two_processes_gives_the_figures_of_one(photos, weights, tmp_path):
    one = run("evaluate", weights, photos, "--out", "one", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    launched = evaluated_by_two(weights, photos, cwd=tmp_path)
    assert launched.returncode == 0, launched.stderr
    assert launched.stdout.count("Top-1") == 1  # one process speaks
    for name in ("predictions.csv", "confusion.csv"):
        assert (tmp_path / "one" / name).read_text() == (tmp_path / "two" / name).read_text()
    refused = evaluated_by_two(weights, photos, cwd=tmp_path)
    assert refused.returncode != 0
    assert refused.stderr.count("two already holds predictions.csv") == 1
    # The second process ends with the first, instead of waiting for its rows until the connection is lost.
    assert "RuntimeError" not in refused.stderr


def evaluated_by_two(weights, photos, *, cwd):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m",
         "vitrine", "evaluate", str(weights), str(photos), "--out", "two", "--device", "cpu"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip


def test_fewshot_draws_from_train_tests_on_test_and_uses_kept_features_again(photos, weights, tmp_path):
    result = inside(
        "fewshot", weights, photos, "--shots", "1,5", "--cache-dir", "kept", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    assert (said["train_split"], said["test_split"]) == ("train", "test")
    assert [score["shots"] for score in said["result"]["scores"]] == [1, 5]
    assert said["result"]["scores"][1]["mean"] > 0.9
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert len(before) == 2
    for probe in ("knn", "logistic"):
        report = vitrine.fewshot(
            str(weights), str(photos), shots="5", probe=probe, cache_dir=tmp_path / "kept", device="cpu"
        )
        result = report.result
        assert (result.probe, result.num_classes, result.num_test, result.seeds) == (probe, 3, 12, 3)
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}


def test_fewshot_of_a_set_that_is_not_split_holds_out_a_half(photos, weights):
    report = vitrine.fewshot(str(weights), str(photos / "train"), shots="1", cache=False, device="cpu")
    assert report.test_split == "the 50 % held out"
    assert (report.result.num_train, report.result.num_test) == (9, 9)


def test_fewshot_refuses_more_shots_than_a_class_has(photos, weights):
    with refusal(DataError, "blue has 6", "7 shots", "2 more classes"):
        vitrine.fewshot(str(weights), str(photos), shots="7", cache=False, device="cpu")
    make_folders(photos.parent / "odd" / "test", "red", "blue")
    make_folders(photos.parent / "odd" / "val", "red", "blue")
    with refusal(DataError, "odd has only val, test;"):
        vitrine.fewshot(str(weights), str(photos.parent / "odd"), cache=False)
    with pytest.raises(ConfigError, match="must be numbers") as refused:
        vitrine.fewshot(str(weights), str(photos), l2="x")
    assert refused.value.option == "l2"


def test_paths_and_text_are_accepted_alike_and_shots_as_a_list_or_as_text(photos, weights, tmp_path):
    by_path = vitrine.evaluate(weights, photos, out=tmp_path / "a", device="cpu")
    by_text = vitrine.evaluate(str(weights), str(photos), out=str(tmp_path / "b"), device="cpu")
    assert by_path.top1 == by_text.top1
    scores = [
        vitrine.fewshot(weights, photos, shots=shots, l2=l2, cache=False, device="cpu").result.scores
        for shots, l2 in (([1, 2], [1.0, 1024.0]), ("1,2", "1,1024"))
    ]
    assert scores[0] == scores[1]
    assert vitrine.fewshot(weights, photos, shots=2, cache=False, device="cpu").result.scores[0].shots == 2


def test_an_evaluator_from_outside_stands_in_the_result_the_file_and_the_page(
    photos, weights, tmp_path, monkeypatch
):
    monkeypatch.setattr("vitrine.evaluation.evaluators.EVALUATORS", dict(EVALUATORS))

    def certain(score: SplitScore) -> dict[str, float]:
        return {"share_above_half": float((score.probabilities.max(axis=1) > 0.5).mean())}

    register_evaluator("certain", certain)
    result = vitrine.evaluate(weights, photos, out=tmp_path / "out", device="cpu")
    assert 0 <= result.extra["share_above_half"] <= 1
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["extra"] == result.extra
    assert "share above half" in (tmp_path / "out" / "report.html").read_text()
    assert any(isinstance(line, str) and line.startswith("share above half: ") for line in lines(result))
    with pytest.raises(ConfigError, match="in use"):
        register_evaluator("certain", certain)


def test_an_evaluator_that_reports_no_number_is_refused(photos, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "vitrine.evaluation.evaluators.EVALUATORS", {"odd": lambda score: {"x": float("nan")}}
    )
    with pytest.raises(ConfigError, match="finite number"):
        vitrine.evaluate(weights, photos, out=tmp_path / "out", device="cpu")


def test_a_probe_from_outside_is_used_by_its_name(photos, weights, monkeypatch):
    monkeypatch.setattr("vitrine.evaluation.probes.PROBES", dict(PROBES))

    def nearest_mean(support, labels, test, options: ProbeOptions):
        means = torch.stack([support[labels == k].mean(dim=0) for k in range(options.num_classes)])
        return [torch.cdist(test, means).argmin(dim=1)]

    register_probe(Probe(name="nearest-mean", predict=nearest_mean))
    report = vitrine.fewshot(weights, photos, shots=5, probe="nearest-mean", cache=False, device="cpu")
    assert report.result.probe == "nearest-mean"
    assert report.result.score(5).mean > 0.9
    with pytest.raises(ConfigError, match="nearest: nearest-mean") as refused:
        vitrine.fewshot(weights, photos, probe="nearestmean", cache=False, device="cpu")
    assert refused.value.option == "probe"
