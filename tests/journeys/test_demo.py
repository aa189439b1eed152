"""`vitrine demo`: the whole path on pictures that it renders itself, here very small."""

import csv
from pathlib import Path

import pytest
from boxes import untrained_box

from vitrine.checkpoints import locating
from vitrine.data.sources.demo_photos import CLASSES, scene
from vitrine.errors import ConfigError

from .commandline import assert_refused, inside
from .golden import assert_transcript

WORDS = ("demo", "--images", "36", "--steps", "2", "--device", "cpu")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    work = tmp_path_factory.mktemp("work")
    box = untrained_box(work / "box", image_size=32, num_classes=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locating, "BOX_FOLDER", box)
        patch.chdir(work)
        done = inside(*WORDS)
        again = inside("demo", "--images", "12", "--steps", "1", "--device", "cpu", "--out", "box")
    return work / "vitrine-demo", done, again


def test_it_finds_what_it_planted_and_names_pages_that_are_there(shown) -> None:  # type: ignore[no-untyped-def]
    folder, done, _ = shown
    assert done.returncode == 0, done.stderr
    assert "40 pictures" in done.stdout and "4 of 4 planted" in done.stdout
    pages = [line.removeprefix("Wrote ") for line in done.stdout.splitlines() if line.startswith("Wrote ")]
    names = ["check/report.html", "run/report.html", "inspect/inspect.html", "predictions.csv"]
    assert pages == [f"vitrine-demo/{name}" for name in names]
    assert all((folder.parent / page).stat().st_size > 0 for page in pages)


def test_its_words_are_those_of_its_transcript(shown) -> None:  # type: ignore[no-untyped-def]
    folder, done, _ = shown
    assert_transcript(WORDS, done.stderr + done.stdout, folder.parent)


def test_it_shows_each_command_before_its_work(shown) -> None:  # type: ignore[no-untyped-def]
    _, done, _ = shown
    said = [line.split()[2] for line in done.stderr.splitlines() if line.startswith("$ vitrine ")]
    assert said == ["check", "finetune", "inspect", "predict"]


def test_new_pictures_are_answered_and_the_file_that_is_none_has_an_error(shown) -> None:  # type: ignore[no-untyped-def]
    folder, _, _ = shown
    with (folder / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    assert {row["predicted"] for row in rows if not row["error"]} <= set(CLASSES)
    assert [Path(row["path"]).name for row in rows if row["error"]] == ["not-a-picture.jpg"]


def test_a_folder_that_is_no_demonstration_is_left_alone(shown) -> None:  # type: ignore[no-untyped-def]
    folder, _, again = shown
    assert_refused(again, "box holds", error=ConfigError, option="out")
    assert (folder.parent / "box" / "model.safetensors").exists()


def test_a_scene_is_a_pure_function_of_thing_number_and_seed() -> None:
    first = scene("star", number=3)
    assert (first == scene("star", number=3)).all()
    assert first.dtype.name == "uint8" and first.shape[2] == 3
    assert first.shape != scene("star", number=4).shape or (first != scene("star", number=4)).any()
