"""Runs at addresses of fsspec: trained, resumed elsewhere, evaluated and used from there.

`memory://` and `local://` run here; S3 (moto on loopback) and two machines (two processes with caches of their own)
are slow.
"""

import json
from pathlib import Path
from unittest import mock

import pytest
from journeys.commandline import assert_refused, inside, losses, refusal
from journeys.test_many_processes import DATA, OPTIONS, on_processes
from pictures import photo, save
from safetensors.torch import load_file
from variations import costly

import vitrine
from vitrine.errors import CheckpointError, ConfigError, MissingCheckpointError
from vitrine.runtime import remote_run
from vitrine.runtime.places import Folder
from vitrine.training.loop import Run
from vitrine.training.stopping import StoppedError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on this machine."""
    out = tmp_path_factory.mktemp("whole") / "run"
    vitrine.pretrain(DATA, out=out, **OPTIONS)
    return out


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "one"))


def same_weights(left: Path, right: Path) -> bool:
    one, other = (load_file(path / "model.safetensors") for path in (left, right))
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def stopped_after(step: int, **options: object) -> None:
    log = Run.log

    def stop(self: Run, *given: object, **rest: object) -> str:
        self.wants_to_stop = self.state.step == step
        return log(self, *given, **rest)

    with mock.patch.object(Run, "log", stop), pytest.raises(StoppedError, match="everything is saved"):
        vitrine.pretrain(DATA, **{**OPTIONS, **options})


def check_a_run_at(address: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a run at an address, resume it on another machine, and use it there."""
    stopped_after(3, out=address)
    with refusal(CheckpointError, "has not finished", advice=["resume"]):
        vitrine.evaluate(address, DATA, device="cpu")
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "two"))
    resumed = vitrine.resume(address)
    assert losses(resumed.folder) == losses(whole) and same_weights(resumed.model, whole / "model")
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "three"))
    save(tmp_path / "photo.png", photo(1, 32, 32))
    for model in (address, f"{address}/model", f"{address}/model/model.safetensors"):
        answer = vitrine.predict(model, tmp_path / "photo.png", device="cpu")
        assert answer.model == model and answer.num_errors == 0
    done = inside("evaluate", address, DATA, "--device", "cpu", "--out", tmp_path / "scores")
    assert done.returncode == 0 and f"{address} on generated:shapes" in done.stdout, done.stderr
    assert (
        vitrine.finetune(DATA, model=address, fast=True, device="cpu", out=tmp_path / "fine").accuracy
        is not None
    )
    vitrine.report(address, out=tmp_path / "page.html", device="cpu")
    assert (tmp_path / "page.html").stat().st_size > 10_000
    copies = [path for path in (tmp_path / "three").rglob("*.safetensors") if "checkpoints" in path.parts]
    assert not copies  # they stay where they are


def test_a_run_at_an_address_is_resumed_on_another_machine_to_the_same_bits(whole, tmp_path, monkeypatch):
    check_a_run_at("memory://bucket/runs/x", whole, tmp_path, monkeypatch)


def test_the_command_line_names_the_address_and_never_its_working_folder(tmp_path):
    address = f"local://{tmp_path}/bucket/runs/x"
    words = ["--recipe", "demo", "--steps", "2", "--batch-size", "8", "--device", "cpu", "--workers", "0"]
    small = [word for setting in OPTIONS["set"] for word in ("--set", setting)]
    done = inside("pretrain", DATA, *words, *small, "--out", address)
    assert done.returncode == 0, done.stderr
    assert f"Wrote {address}/model" in done.stdout and f"to {address}" in done.stderr
    assert f"vitrine predict {address} PICTURES" in done.stdout
    assert str(tmp_path / "one") not in done.stdout + done.stderr
    again = inside("pretrain", DATA, *words, *small, "--out", address)
    assert_refused(again, f"{address} already holds", error=ConfigError, option="out", advice=["overwrite"])
    over = inside("pretrain", DATA, *words, *small, "--out", address, "--overwrite", "--json")
    assert json.loads(over.stdout)["model"] == f"{address}/model", over.stderr
    ended = inside("resume", address)
    assert ended.returncode == 2 and f"{address} has finished (2 steps)" in ended.stderr
    there = {path.name for path in (tmp_path / "bucket" / "runs" / "x").iterdir()}
    assert {"run.json", "model", "report.html", "run-files.json"} <= there


def test_a_store_that_fails_for_a_while_costs_no_step(whole, tmp_path, capsys, monkeypatch):
    """The second checkpoint cannot be uploaded; the third one brings both."""
    count, write = iter(range(1000)), remote_run.write_manifest

    def failing(store: Folder, manifest: object) -> None:
        if next(count) == 2:
            raise CheckpointError("cannot reach the store")
        write(store, manifest)

    monkeypatch.setattr(remote_run, "write_manifest", failing)
    address = f"local://{tmp_path}/bucket/x"
    result = vitrine.pretrain(DATA, out=address, **OPTIONS)
    assert "Not uploaded at step" in (result.folder / "log.txt").read_text()
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "two"))
    assert same_weights(remote_run.fetch_run(address) / "model", whole / "model")


@pytest.mark.parametrize("kind", costly(["photos", "shards"], quick=["photos"]))
def test_data_at_an_address_trains_as_data_on_this_machine(tmp_path, kind):
    for number in range(16):
        save(tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number:02d}.png", photo(number, 40, 36))
    if kind == "shards":
        vitrine.shard(tmp_path / "photos", tmp_path / "shards")
    fsspec.filesystem("memory").put(f"{tmp_path / kind}/", f"/train/{kind}", recursive=True)
    options = {**OPTIONS, "steps": 2, "batch_size": 4}
    here = vitrine.pretrain(tmp_path / kind, out=tmp_path / "here", **options)
    there = vitrine.pretrain(f"memory://train/{kind}", out=f"memory://runs/{kind}", **options)
    assert losses(here.folder) == losses(there.folder)


def test_what_is_no_model_at_an_address_is_refused_in_a_sentence(tmp_path):
    fsspec.filesystem("memory").pipe_file("/empty/notes.txt", b"no model")
    for model in ("memory://empty", "memory://nowhere"):
        with refusal(MissingCheckpointError, f"folder of weights at {model}"):
            vitrine.evaluate(model, DATA, device="cpu")


@pytest.mark.slow
def test_two_machines_without_a_common_disk_train_one_run_at_an_address(tmp_path, monkeypatch):
    address = f"local://{tmp_path}/bucket/x"
    options = {**OPTIONS, "out": address}
    job = {"verb": "pretrain", "argument": DATA, "options": options, "stop_after": 3}
    apart = [{**job, "caches": str(tmp_path / "machines")}]
    apart += [{"verb": "resume", "argument": address, "options": {}, "caches": str(tmp_path / "others")}]
    together = [{**job, "stop_after": None, "options": {**OPTIONS, "out": str(tmp_path / "together")}}]
    divided = {**options, "out": f"local://{tmp_path}/bucket/divided", "shard": True}
    sharded = [{**job, "options": divided}, {"verb": "resume", "argument": divided["out"], "options": {}}]
    refused = [{**apart[0], "options": {**divided, "out": f"{address}-refused"}}]
    ends = on_processes(2, apart + together + sharded + refused)
    assert "everything is saved" in ends[0] and ends[1:3] == ["0", "0"]
    assert "everything is saved" in ends[3] and ends[4] == "0"
    assert "a common disk" in ends[5] and "set VITRINE_CACHE" in ends[5]
    fetched = remote_run.fetch_run(address)
    assert losses(fetched) == losses(tmp_path / "together")
    assert same_weights(fetched / "model", tmp_path / "together" / "model")
    assert losses(remote_run.fetch_run(divided["out"])) == pytest.approx(losses(fetched), rel=1e-5)


@pytest.mark.slow
def test_a_run_in_an_object_store_is_resumed_on_another_machine_to_the_same_bits(
    whole, tmp_path, monkeypatch, store
):
    check_a_run_at(f"{store}/runs/x", whole, tmp_path, monkeypatch)
