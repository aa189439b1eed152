"""A run folder from somebody else: it runs no code, writes to no file outside, and downloads nothing unasked."""

import json
import os
import shutil
import socket
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from journeys.commandline import assert_refused, inside
from journeys.test_training import SHAPES, SMALL, interrupted
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_saver import save
from unit.training.test_sharded_state import Hostile, call_it_bytes

import vitrine
from vitrine.errors import ConfigError, DataError, TryOption
from vitrine.training.saving import numbers_of


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after four steps."""
    run = tmp_path_factory.mktemp("foreign") / "run"
    return interrupted(SHAPES, *SMALL, "--steps", "9", "--out", run)


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, as it would be unpacked."""
    return shutil.copytree(stopped, tmp_path / "run", symlinks=True)


def change_record(run: Path, **values: object) -> None:
    file = run / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def as_sharded(run: Path) -> Path:
    """Turn the checkpoint into that of a sharded run."""
    file, folder = run / "checkpoints" / "last.safetensors", run / "checkpoints" / "last"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(dict(load_file(file)), checkpoint_id=folder, no_dist=True)
    (folder / "numbers.json").write_text(json.dumps(numbers_of(file)))
    file.unlink()
    return folder


def test_a_checkpoint_of_a_sharded_run_is_resumed(run: Path) -> None:
    as_sharded(run)
    done = inside("resume", run)
    assert done.returncode == 0, done.stderr


def test_no_file_of_a_sharded_checkpoint_runs_code(run: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    call_it_bytes(as_sharded(run), done)
    assert_refused(inside("resume", run), "is not a tensor")
    assert not done.exists()


@pytest.mark.parametrize("name", ["last.safetensors", "best.safetensors"])
def test_a_pickle_in_the_place_of_a_checkpoint_runs_no_code(run: Path, tmp_path: Path, name: str) -> None:
    torch.save(Hostile(tmp_path / "done"), run / "checkpoints" / name)
    inside("resume", run)
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize(
    "name",
    ["log.txt", "metrics.jsonl", "config.yaml", "data.json", "split.csv", "report.html", ".checkpoints.lock"],
)
@pytest.mark.parametrize("verb", ["resume", "report"])
def test_nothing_is_written_through_a_link_out_of_the_folder(
    run: Path, tmp_path: Path, name: str, verb: str
) -> None:
    target = tmp_path / "precious"
    content = (run / name).read_bytes() if (run / name).exists() else b"precious"
    target.write_bytes(content)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    assert_refused(inside(verb, run), str(run / name), "outside the run folder")
    assert target.read_bytes() == content


@pytest.mark.parametrize("name", ["checkpoints", "model", "tensorboard", "sweep", "pictures", "wandb"])
def test_no_folder_of_a_run_may_lie_elsewhere(run: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if (run / name).exists():
        (run / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    (run / name).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    assert_refused(inside("resume", run), "outside the run folder")
    assert sorted(elsewhere.rglob("*")) == before


def test_a_link_that_does_not_exist_yet_creates_nothing(run: Path, tmp_path: Path) -> None:
    (run / "log.txt").unlink()
    (run / "log.txt").symlink_to(tmp_path / "created")
    assert_refused(inside("resume", run), "outside the run folder")
    assert not (tmp_path / "created").exists()


def test_a_pipe_in_a_run_folder_is_refused_instead_of_waited_for(run: Path) -> None:
    (run / "log.txt").unlink()
    os.mkfifo(run / "log.txt")
    assert_refused(inside("resume", run), "log.txt is a pipe", error=ConfigError)


def test_a_run_folder_that_is_itself_a_link_is_resumed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    done = inside("resume", tmp_path / "link")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def listener():
    """A server that must not be asked; it counts who comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def num_connections(server: socket.socket) -> int:
    count = 0
    while True:
        try:
            server.accept()
        except BlockingIOError:
            return count
        count += 1


def test_resume_asks_before_it_reads_data_at_an_address_of_the_web(
    run: Path, listener: socket.socket
) -> None:
    change_record(run, data=f"http://127.0.0.1:{listener.getsockname()[1]}/shards")
    with pytest.raises(DataError) as refused:
        vitrine.resume(run)
    assert refused.value.advice == (TryOption("allow_download", "to download it", True),)
    assert num_connections(listener) == 0


def test_report_asks_before_it_reads_data_at_an_address_of_the_web(
    run: Path, listener: socket.socket
) -> None:
    change_record(run, data=f"http://127.0.0.1:{listener.getsockname()[1]}/shards")
    page = vitrine.report(run)
    assert "allow_download" in page.notes[0]
    assert num_connections(listener) == 0


def test_data_of_the_hub_that_is_not_in_the_cache_is_asked_for_first(run: Path, elsewhere: None) -> None:
    change_record(run, data="hub:someone/pictures")
    with pytest.raises(DataError) as refused:
        vitrine.resume(run)
    assert refused.value.advice == (TryOption("allow_download", "to download it", True),)


def test_a_teacher_at_an_address_of_the_web_is_asked_for_first(
    run: Path, listener: socket.socket, elsewhere: None
) -> None:
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/teacher.safetensors"
    recipe = yaml.safe_load((run / "config.yaml").read_text())
    recipe["objective"] = {"kind": "distillation", "teacher": address}
    (run / "config.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(vitrine.VitrineError) as refused:
        vitrine.resume(run)
    assert refused.value.advice == (TryOption("allow_download", "to download it", True),)
    assert num_connections(listener) == 0
