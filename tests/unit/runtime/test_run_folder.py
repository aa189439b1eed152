import dataclasses
import json
import subprocess
import sys

import pytest

from vitrine.errors import CheckpointError, ConfigError
from vitrine.runtime.run_folder import WRITTEN, RunFolder
from vitrine.runtime.run_record import RunRecord

RECORD = RunRecord(verb="finetune", data="photos", device="cpu", workers=2, model={}, preprocess={})


def test_a_record_that_was_written_is_read_again_as_it_was(tmp_path):
    run = RunFolder(tmp_path / "run")
    record = dataclasses.replace(RECORD, hold_out=0.2, is_sweeping=True, model={"width": 8})
    assert not run.is_run
    run.write_record(record)
    assert run.is_run and run.read_record() == record


def test_a_record_of_an_older_or_newer_version_is_read_for_what_it_has(tmp_path):
    run = RunFolder(tmp_path)
    values = {"verb": "pretrain", "data": "d", "device": "cpu", "workers": 0, "model": {}, "preprocess": {}}
    run.record_file.write_text(json.dumps({**values, "from_the_future": 1}))
    assert run.read_record().threads is None
    assert run.read_record().objective == "labels"


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"verb": "finetune"}', b"\xff\xfe"])
def test_a_damaged_record_is_refused_by_its_name(tmp_path, content):
    file = RunFolder(tmp_path).record_file
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"run\.json"):
        RunFolder(tmp_path).read_record()


def test_files_that_were_not_kept_are_empty_and_those_that_must_be_there_are_refused(tmp_path):
    run = RunFolder(tmp_path)
    assert (run.read_command(), run.read_environment(), run.read_data(), run.read_metrics()) == (
        "",
        {},
        {},
        [],
    )
    for read in (run.read_record, run.read_recipe, run.read_classes):
        with pytest.raises(ConfigError, match="cannot read"):
            read()


def test_metrics_after_the_resumed_step_and_a_line_cut_short_are_dropped(tmp_path):
    run = RunFolder(tmp_path)
    run.metrics_file.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "val_loss": 1}\n{"step": 3, "lo')
    with run.open_metrics(done_steps=1) as file:
        file.write('{"step": 2}\n')
    kept = ['{"step": 1, "loss": NaN}', '{"step": 2}']
    assert run.metrics_file.read_text() == "".join(f"{line}\n" for line in kept)
    assert [record["step"] for record in run.read_metrics()] == [1, 2]


def test_clearing_removes_what_a_run_writes_and_nothing_else(tmp_path):
    for name in WRITTEN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "inside").touch()
    (tmp_path / "notes.md").touch()
    RunFolder(tmp_path).clear()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


def test_a_folder_is_removed_after_a_failure_only_if_it_was_empty(tmp_path):
    for name, is_kept in (("new", False), ("used", True)):
        run = RunFolder(tmp_path / name)
        run.path.mkdir()
        if is_kept:
            (run.path / "notes.md").touch()
        with pytest.raises(ConfigError), run.removed_on_failure():
            run.split_file.touch()
            raise ConfigError("no such data")
        assert run.path.exists() == is_kept


@pytest.mark.parametrize(
    ("is_fast", "has_model", "is_kept"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_a_closed_form_that_saved_no_model_leaves_nothing_behind(tmp_path, is_fast, has_model, is_kept):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    with pytest.raises(OSError, match="full"), run.removed_on_failure():
        run.write_record(dataclasses.replace(RECORD, is_fast=is_fast))
        if has_model:
            run.model.mkdir()
            (run.model / "config.json").touch()
        raise OSError("the disk is full")
    assert run.path.exists() == is_kept


def test_a_locked_run_is_refused_to_another_process(tmp_path):
    run = RunFolder(tmp_path)
    enter = f"RunFolder(Path({str(tmp_path)!r})).locked().__enter__()"
    code = f"from pathlib import Path; from vitrine.runtime.run_folder import RunFolder; {enter}"
    with run.locked():
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigError" in other.stderr
    with run.locked():
        pass


def test_what_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file/config\.yaml"):
        RunFolder(tmp_path / "file").write_recipe("name: photos")


def test_a_sweep_lists_its_attempts_by_rate(tmp_path):
    run = RunFolder(tmp_path)
    for rate in (1e-3, 3e-5, 1e-4):
        run.attempt(rate).path.mkdir(parents=True)
    assert [*run.attempts()] == [3e-5, 1e-4, 1e-3]
    assert run.attempts()[3e-5] == run.attempt(3e-5)


def test_a_run_folder_is_known_without_torch():
    code = (
        "import sys, vitrine.runtime.run_folder, vitrine.runtime.find_run; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"classes": 3}'])
def test_an_error_about_a_file_of_a_run_names_it_once(tmp_path, content):
    (tmp_path / "classes.json").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path).read_classes()
    assert str(caught.value).count("classes.json") == 1
