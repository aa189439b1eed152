import os
import re
import threading
import time
from pathlib import Path

import pytest

from vitrine.errors import CheckpointError, ConfigError
from vitrine.runtime.run_folders import by_its_own_name, find_run, is_inside, leaving_nothing, new_run_folder


def test_without_a_name_each_run_has_its_own_dated_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {new_run_folder(None, verb="check", files=["report.html"]) for _ in range(3)}
    assert len(folders) == 3
    assert all(
        folder.parent.name == "runs" and "check" in folder.name and folder.is_dir() for folder in folders
    )


def test_two_that_start_in_the_same_second_never_share_a_dated_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together, folders = threading.Barrier(8), []

    def start() -> None:
        together.wait()
        folder = new_run_folder(None, verb="check", files=["issues.csv"])
        (folder / "issues.csv").touch()  # the next in the same second gets another folder, and is not refused
        folders.append(folder)

    for _ in range(5):
        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(folders)) == len(folders) == 40


def test_a_dangling_link_in_the_place_of_runs_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path / "unplugged")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        new_run_folder(None, verb="check", files=[])


def test_a_folder_inside_the_data_set_is_refused_even_through_a_link(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    for out in (tmp_path / "photos", tmp_path / "photos" / "out", tmp_path / "link" / "out"):
        with pytest.raises(ConfigError, match=r"nothing is ever written.*--out"):
            new_run_folder(out, verb="check", files=[], never_in=[tmp_path / "photos"])
    assert list((tmp_path / "photos").iterdir()) == []


def test_a_folder_that_holds_results_is_refused_unless_overwriting(tmp_path):
    (tmp_path / "issues.csv").write_text("old")
    with pytest.raises(ConfigError, match=r"already holds issues\.csv"):
        new_run_folder(tmp_path, verb="check", files=["issues.csv"])
    assert new_run_folder(tmp_path, verb="check", files=["issues.csv"], is_overwriting=True) == tmp_path


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make the folder"):
        new_run_folder(tmp_path / "file" / "out", verb="check", files=[])


def test_beside_a_file_is_not_inside_it_but_the_file_itself_is(tmp_path):
    (tmp_path / "train.parquet").write_text("")
    assert not is_inside(tmp_path / "runs", tmp_path / "train.parquet")
    assert is_inside(tmp_path / "train.parquet", tmp_path / "train.parquet")


def test_latest_stands_for_the_newest_run_when_weights_are_loaded(tmp_path):
    import os

    import vitrine

    for number, name in enumerate(("old", "new")):
        model = vitrine.create_model(
            "ViT", width=8, depth=1, num_heads=1, mlp_width=8, image_size=16, num_classes=2 + number
        )
        vitrine.save(model, tmp_path / name / "model", classes=["a", "b", "c"][: 2 + number])
        (tmp_path / name / "run.json").write_text("{}")
        os.utime(tmp_path / name, (number, number))
    assert vitrine.load(str(tmp_path / "latest")).classes == ("a", "b", "c")
    for misspelt in ("lates", "latets"):
        with pytest.raises(CheckpointError, match=r"did you mean .*/latest\?"):
            vitrine.load(str(tmp_path / misspelt))
        with pytest.raises(ConfigError, match=r"did you mean .*/latest\?"):
            find_run(tmp_path / misspelt)


def test_what_is_interrupted_before_it_wrote_anything_leaves_no_folder(tmp_path):
    for name, is_kept in (("empty", False), ("begun", True)):
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(KeyboardInterrupt), leaving_nothing(folder):
            if is_kept:
                (folder / "half.csv").touch()
            raise KeyboardInterrupt
        assert folder.exists() == is_kept


def test_what_is_no_run_is_refused_with_the_run_that_was_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first" / "model").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text("{}")
    meant = {
        "runs": "did you mean runs/latest?",
        "runs/first/model": "did you mean runs/first?",
        "runs/fist": "did you mean runs/first?",
        "photos": "the newest one is runs/latest",
    }
    for named, words in meant.items():
        with pytest.raises(
            ConfigError, match=re.escape(f"{named} is not the folder of a training run; {words}")
        ):
            find_run(Path(named))


def test_the_latest_run_is_the_one_trained_last_and_not_the_one_last_written_about(tmp_path):
    for age, name in ((300, "old"), (200, "new")):
        run = tmp_path / name
        run.mkdir()
        for file in ("run.json", "metrics.jsonl"):
            (run / file).write_text("{}")
            os.utime(run / file, (time.time() - age,) * 2)
    (tmp_path / "old" / "report.html").write_text("again")
    assert find_run(tmp_path / "latest") == tmp_path / "new"
    (tmp_path / "old" / "metrics.jsonl").write_text("{}\n{}")  # it was resumed
    assert find_run(tmp_path / "latest") == tmp_path / "old"


def test_what_is_called_latest_now_is_kept_by_its_own_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert by_its_own_name("runs/latest") == "runs/latest"  # none yet: who opens it will say so
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text("{}")
    assert by_its_own_name("runs/latest") == "runs/first"
    assert [by_its_own_name(name) for name in ("box", "google/vit-base", "runs/first")] == [
        "box",
        "google/vit-base",
        "runs/first",
    ]
    (tmp_path / "runs" / "latest").mkdir()
    assert by_its_own_name("runs/latest") == "runs/latest"
