import os
import time
from pathlib import Path

import pytest

import vitrine
from vitrine.errors import CheckpointError, ConfigError
from vitrine.runtime.find_run import find_run, link_latest, resolve_latest, run_of_model, runs_in
from vitrine.runtime.run_folder import RunFolder


def test_latest_stands_for_the_newest_run_when_weights_are_loaded(tmp_path):
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


def test_what_is_no_run_is_refused_with_the_run_that_was_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first" / "model").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text("{}")
    meant = {
        "runs": "runs/latest",
        "runs/first/model": "runs/first",
        "runs/fist": "runs/first",
        "photos": "runs/latest",
    }
    for named, run in meant.items():
        with pytest.raises(ConfigError, match=f"^{named} is not the folder") as refused:
            find_run(Path(named))
        assert refused.value.suggestions == (run,)


def test_the_latest_run_is_the_one_trained_last_and_not_the_one_last_written_about(tmp_path):
    for age, name in ((300, "old"), (200, "new")):
        run = tmp_path / name
        run.mkdir()
        for file in ("run.json", "metrics.jsonl"):
            (run / file).write_text("{}")
            os.utime(run / file, (time.time() - age,) * 2)
    (tmp_path / "old" / "report.html").write_text("again")
    assert find_run(tmp_path / "latest").path == tmp_path / "new"
    (tmp_path / "old" / "metrics.jsonl").write_text("{}\n{}")  # it was resumed
    assert find_run(str(tmp_path / "latest")).path == tmp_path / "old"


def test_what_is_called_latest_now_is_kept_by_its_own_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_latest("runs/latest") == "runs/latest"  # none yet: who opens it will say so
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "run.json").write_text("{}")
    assert resolve_latest("runs/latest") == "runs/first"
    assert [resolve_latest(name) for name in ("box", "google/vit-base", "runs/first")] == [
        "box",
        "google/vit-base",
        "runs/first",
    ]
    (tmp_path / "runs" / "latest").mkdir()
    assert resolve_latest("runs/latest") == "runs/latest"


def test_a_model_leads_to_its_run_from_the_run_folder_and_from_the_folder_model_in_it(tmp_path):
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    assert run_of_model(run) is None
    for name in ("run.json", "config.yaml"):
        (run / name).write_text("{}")
    found = {run_of_model(place) for place in (run, run / "model", str(tmp_path / "latest"))}
    assert {folder.path for folder in found} == {run}


def test_latest_is_a_link_to_the_run_that_began_last(tmp_path):
    runs = [tmp_path / "runs" / name for name in ("first", "second")]
    for run in runs:
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
        link_latest(RunFolder(run))
    link = tmp_path / "runs" / "latest"
    assert link.is_symlink() and link.resolve() == runs[1]
    assert find_run(link).path == runs[1] and resolve_latest(str(link)) == str(runs[1])
    assert sorted(run.path for run in runs_in(tmp_path / "runs")) == runs  # the link is no run of its own
    link_latest(RunFolder(runs[0]))  # it was resumed
    assert find_run(link).path == runs[0]
    for file in runs[0].iterdir():
        file.unlink()
    runs[0].rmdir()
    assert find_run(link).path == runs[1]  # the folder that the link names is gone


def test_no_link_is_made_outside_runs_nor_over_a_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    link_latest(RunFolder(tmp_path / "mine"))
    assert not (tmp_path / "latest").exists()
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    link_latest(RunFolder(tmp_path / "runs" / "first"))
    assert not (tmp_path / "runs" / "latest").is_symlink()
