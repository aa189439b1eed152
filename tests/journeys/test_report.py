"""The page of a run: made at its end, when it stops, and by `vitrine report`; whole in itself."""

import json
import re
import shlex
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch
import typer.main
from journeys.commandline import assert_refused, inside
from pictures import class_folders

import vitrine
from vitrine.cli.app import build
from vitrine.errors import ConfigError
from vitrine.models import create_model
from vitrine.training.loop import Run

OPTIONS = ("--batch-size", "4", "--device", "cpu", "--workers", "0", "--lr", "1e-3")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    small = create_model(
        "ViT-B/16", image_size=32, num_classes=3, patch_size=8, width=16, depth=2, num_heads=2, mlp_width=32
    )
    return vitrine.save(small, tmp_path_factory.mktemp("weights") / "model")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = class_folders(
        tmp_path_factory.mktemp("data") / "my photos", classes=("cat", "dog", "owl"), each=12
    )
    (folder / "cat" / "<b>broken.jpg").write_text("no picture")
    return folder


@pytest.fixture(scope="module")
def run(photos: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    done = inside(
        "finetune", photos, "--model", weights, *OPTIONS, "--epochs", "2", "--evaluate-every", "4",
        "--hold-out", "0.3", "--out", folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"Wrote {folder}/report.html" in done.stdout
    assert "Worst classes by F1" in done.stdout
    (folder.parent / "printed.txt").write_text(done.stdout)
    return folder


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_the_page_shows_all_there_is_and_loads_nothing_from_elsewhere(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    # After twelve steps, a remark on the gap between training and validation depends on the last bits of the sums.
    assert [title for title in headings(page) if title != "What happened"] == [
        "Most confident mistakes", "Worst classes", "Confusion matrix", "Most often confused", "Calibration",
        "Curves", "Data", "What to do next", "Repeat this run",
    ]  # fmt: skip
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert "<script" not in page
    assert page.count("polyline") >= 5  # loss and accuracy of both, learning rate, speed
    assert 'alt="attention on ' in page
    assert "&lt;b&gt;broken.jpg" in page
    assert "<b>broken.jpg" not in page
    assert "not an image" in page


def test_the_headline_is_the_accuracy_and_interval_that_the_command_printed(run: Path, photos: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    report = vitrine.report(run, device="cpu", workers=0)
    headline = f"{100 * report.accuracy:.1f} %"
    assert f"<h1>{headline} of the validation images" in page
    assert headline in (run.parent / "printed.txt").read_text()
    low, high = report.interval
    assert f"95 % interval {100 * low:.1f} to {100 * high:.1f} %, {report.num_images} images" in page


def test_the_command_to_repeat_it_parses_and_names_the_recipe_as_it_was(run: Path, photos: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    [command] = re.findall(r"<pre>(vitrine finetune .*? --recipe .*?)</pre>", page)
    words = shlex.split(command.replace("&#39;", "'"))
    assert words[1:5] == ["finetune", str(photos), "--recipe", str(run / "config.yaml")]
    assert words[5:] == ["--hold-out", "0.3"]
    application = typer.main.get_command(build())
    context = application.make_context("vitrine", words[1:], resilient_parsing=True)
    _, verb, rest = application.resolve_command(context, words[1:])  # type: ignore[attr-defined]
    verb.make_context("finetune", list(rest), parent=context)


def test_repeating_by_the_recipe_takes_its_model_and_gives_the_same_weights(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    vitrine.finetune(
        str(photos),
        recipe=str(run / "config.yaml"),
        hold_out=0.3,
        device="cpu",
        workers=0,
        out=tmp_path / "again",
    )
    first, again = (
        (folder / "model" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "again")
    )
    assert first == again


def test_a_run_that_was_stopped_leaves_its_curves(photos: Path, weights: Path, tmp_path: Path) -> None:
    taken = Run.checkpoint_if_due

    def stop_at_6(self: Run, window: object) -> None:
        self.wants_to_stop = self.state.step == 6
        taken(self, window)  # type: ignore[arg-type]

    with mock.patch.object(Run, "checkpoint_if_due", stop_at_6):
        done = inside(
            "finetune", photos, "--model", weights, *OPTIONS, "--steps", "20", "--log-every", "2", "--out",
            tmp_path / "run",
        )  # fmt: skip
    assert_refused(done, "stopped after step 6", code=130)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "after step 6 of 20" in page
    assert f"vitrine resume {tmp_path / 'run'}" in page
    assert headings(page) == ["Curves", "Data", "Repeat this run"]


def test_a_run_whose_data_is_gone_is_still_reported(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    facts = json.loads((moved / "run.json").read_text())
    (moved / "run.json").write_text(json.dumps(facts | {"data": "/nowhere/photos"}))
    report = vitrine.report(moved, out=tmp_path / "page.html", device="cpu")
    assert report.accuracy is None
    assert "cannot be opened" in report.notes[0]
    assert "Curves" in headings((tmp_path / "page.html").read_text())


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert_refused(inside("report", tmp_path), str(tmp_path), error=ConfigError)


def test_several_labels_an_image_and_no_labels_at_all_have_pages_too(tmp_path: Path) -> None:
    small = (
        "--recipe", "demo", "--steps", "3", "--batch-size", "8", "--device", "cpu", "--workers", "0",
        "--set", "model_options.depth=1", "--set", "model_options.width=32", "--set", "model_options.mlp_width=32",
    )  # fmt: skip
    done = inside(
        "pretrain", "generated:shapes?count=16&label=colour,shape", *small, "--out", tmp_path / "many"
    )
    assert done.returncode == 0, done.stderr
    assert "Mean average precision " in done.stdout and "Accuracy" not in done.stdout
    assert "Worst classes by average precision: " in done.stdout and "F1" not in done.stdout
    page = (tmp_path / "many" / "report.html").read_text()
    assert "mean average precision on the" in page
    assert "Worst classes by average precision" in headings(page)
    again = inside("report", tmp_path / "many")
    assert ", mean average precision " in again.stdout and "F1" not in again.stdout
    done = inside(
        "pretrain",
        "generated:shapes?count=16",
        *small,
        "--objective",
        "masked-patches",
        "--out",
        tmp_path / "none",
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "none" / "report.html").read_text()
    assert "Trained for 3 steps" in page
    assert "Curves" in headings(page)


def test_a_run_is_measured_on_what_it_held_out_when_it_is_given_its_own_photos_again(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    done = inside("evaluate", run, photos, "--device", "cpu", "--out", tmp_path / "measured", "--json")
    assert done.returncode == 0, done.stderr
    assert "images that it held out" in done.stderr
    scores = json.loads(done.stdout)
    assert scores["split"] == "held out"
    num_held_out = json.loads((run / "data.json").read_text())["images"]["val"]
    assert scores["num_images"] == num_held_out
    exported = inside(
        "export",
        run,
        "--data",
        photos,
        "--int8",
        "--allow-loss",
        "--no-speed",
        "--out",
        tmp_path / "onnx",
        "--json",
    )
    assert exported.returncode == 0, exported.stderr
    assert {each["num_images"] for each in json.loads(exported.stdout)["accuracy"]} == {num_held_out}
    again = json.loads(
        inside("report", run, "--device", "cpu", "--out", tmp_path / "page.html", "--json").stdout
    )
    assert scores["top1"]["value"] == pytest.approx(again["accuracy"])
    all_of_it = inside("evaluate", run, photos, "--split", "all", "--out", tmp_path / "all", "--json")
    assert json.loads(all_of_it.stdout)["num_images"] == 36
    # One file more, which cannot be read.
    assert f"{37 - num_held_out} of these 37 images" in all_of_it.stderr


def test_a_list_that_names_photos_which_a_run_was_trained_on_is_measured_with_a_warning(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRINE_ALLOW_OUTSIDE", "1")  # the list is ours
    rows = (run / "split.csv").read_text().splitlines()[1:]
    for side, warns in (("train", True), ("val", False)):
        names = [row.rpartition(",")[0] for row in rows if row.rpartition(",")[2] == side]
        lines = [f"{photos / name},{Path(name).parent.name}" for name in names]
        (tmp_path / f"{side}.csv").write_text("\n".join(["path,label", *lines]) + "\n")
        done = inside("evaluate", run, tmp_path / f"{side}.csv", "--device", "cpu", "--out", tmp_path / side)
        assert done.returncode == 0, done.stderr
        assert (f"{len(names)} of these {len(names)} images" in done.stderr) == warns
        assert ("also used to train" in done.stderr) == warns


def test_few_shots_of_a_run_on_its_own_photos_come_with_a_warning(
    run: Path, photos: Path, weights: Path
) -> None:
    shots = ("--shots", "2", "--seeds", "1", "--no-cache", "--device", "cpu")
    assert "was trained on" in inside("fewshot", run, photos, *shots).stderr
    assert "was trained on" not in inside("fewshot", weights, photos, *shots).stderr


def test_a_run_on_all_photos_is_measured_on_them_with_a_warning(
    photos: Path, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    done = inside(
        "finetune", photos, "--model", weights, *OPTIONS, "--steps", "2", "--hold-out", "0", "--out", out
    )
    assert done.returncode == 0, done.stderr
    measured = inside("evaluate", out, photos, "--device", "cpu", "--out", tmp_path / "measured")
    assert measured.returncode == 0, measured.stderr
    assert "was trained on all images" in measured.stderr


def test_what_comes_next_can_be_typed_as_it_stands(run: Path, photos: Path, tmp_path: Path) -> None:
    checked = inside("check", photos, "--out", tmp_path / "check")
    [line] = [line for line in checked.stdout.splitlines() if line.startswith("Next: ")]
    assert shlex.split(line) == ["Next:", "vitrine", "finetune", str(photos)]
    picture = photos / "cat" / "0.png"
    for options in ((), ("--out", tmp_path / "answers.csv")):
        said = inside("predict", run, picture, "--device", "cpu", *options)
        assert said.returncode == 0, said.stderr
        [line] = [line for line in said.stdout.splitlines() if line.startswith("Next: ")]
        assert shlex.split(line.partition("   (")[0]) == [
            "Next:",
            "vitrine",
            "inspect",
            str(run),
            str(picture),
        ]
