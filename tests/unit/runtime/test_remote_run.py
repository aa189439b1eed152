"""Runs at addresses: whatever is interrupted, what is fetched is one publication, whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrine.errors import CheckpointError, ConfigError
from vitrine.runtime import remote_model, remote_run
from vitrine.runtime.places import open_folder
from vitrine.runtime.remote_run import begin_remote_run, discard_remote_run, fetch_run, publish_run
from vitrine.runtime.run_address import address_of, shown_place, working_folder
from vitrine.runtime.run_manifest import MANIFEST, read_manifest

pytest.importorskip("fsspec")
FIRST = {"run.json": b"{}", "metrics.jsonl": b"one\n", "checkpoints/last.safetensors": b"old " * 9}
SECOND = {
    "run.json": b"{}", "metrics.jsonl": b"one\ntwo\n", "checkpoints/last.safetensors": b"new " * 9,
    "model/config.json": b"[]",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    on_machine("one", tmp_path, monkeypatch)
    return tmp_path


def on_machine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a machine with a cache of its own."""
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / name))


def written(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def at(store: Path) -> str:
    return f"local://{store}/runs/x"


def test_a_run_lies_under_its_own_names_at_the_end_and_nothing_else_is_left(tmp_path, monkeypatch):
    address = at(tmp_path)
    folder = begin_remote_run(address, may_replace=False)
    for files in (FIRST, SECOND, FIRST | SECOND):
        written(folder, files)
        (folder / ".last.lock").touch()
        publish_run(folder / "checkpoints")
    publish_run(folder, is_final=True)
    there = contents(tmp_path / "runs" / "x")
    assert read_manifest(open_folder(address)).used == set(SECOND) == there.keys() - {MANIFEST}
    assert {name: there[name] for name in SECOND} == SECOND
    assert address_of(folder / "model") == f"{address}/model" == shown_place(folder / "model")
    on_machine("two", tmp_path, monkeypatch)
    assert contents(fetch_run(address)) == SECOND


class Killed(BaseException):
    pass


def dying_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die before the given change of the store; half of a file may have arrived."""
    left = iter(range(number + 1))
    for kind in ("put", "writing", "remove"):
        change = getattr(remote_run.open_folder("local:///").__class__, kind)

        def changed(self, name, *rest, change=change, kind=kind):
            if next(left, None) is None:
                if kind == "writing" and name != MANIFEST:
                    (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                    (self.path / name).write_bytes(b"half")
                raise Killed
            return change(self, name, *rest)

        monkeypatch.setattr(remote_run.open_folder("local:///").__class__, kind, changed)


@pytest.mark.parametrize("is_final", [False, True])
def test_a_kill_before_any_change_of_the_store_leaves_one_publication_whole(tmp_path, monkeypatch, is_final):
    seen = []
    for number in range(50):
        address = at(tmp_path / str(number))
        on_machine(f"one-{number}", tmp_path, monkeypatch)
        folder = begin_remote_run(address, may_replace=False)
        written(folder, FIRST)
        publish_run(folder)
        written(folder, SECOND)
        with monkeypatch.context() as patch:
            dying_at(number, patch)
            try:
                publish_run(folder, is_final=is_final)
                is_killed = False
            except Killed:
                is_killed = True
        # The same machine has what it wrote; another one has the last publication.
        assert contents(fetch_run(address)) == SECOND
        on_machine(f"two-{number}", tmp_path, monkeypatch)
        fetched = fetch_run(address, takes_over=True)
        seen.append(contents(fetched))
        assert seen[-1] in (FIRST, SECOND)
        written(fetched, SECOND)
        publish_run(fetched, is_final=True)
        there = contents(tmp_path / str(number) / "runs" / "x")
        assert {name: there.pop(name) for name in SECOND} == SECOND and there.keys() == {MANIFEST}
        if not is_killed:
            break
    assert FIRST in seen and SECOND in seen and number < 49


def test_who_has_lost_a_run_to_another_machine_cannot_write_there(tmp_path, monkeypatch):
    address = at(tmp_path)
    folder = begin_remote_run(address, may_replace=False)
    written(folder, FIRST)
    publish_run(folder)
    with pytest.raises(ConfigError, match=f"{address} already holds") as refused:
        begin_remote_run(address, may_replace=False)
    assert (refused.value.option, refused.value.advice[0].option) == ("out", "overwrite")
    on_machine("two", tmp_path, monkeypatch)
    fetch_run(address, takes_over=True)
    on_machine("one", tmp_path, monkeypatch)
    written(folder, SECOND)
    with pytest.raises(ConfigError, match=f"continued the run at {address};"):
        publish_run(folder)
    assert contents(fetch_run(address)) == FIRST


def test_a_run_that_never_began_leaves_no_trace(tmp_path):
    folder = begin_remote_run(at(tmp_path), may_replace=False)
    discard_remote_run(folder)
    assert contents(tmp_path / "runs") == {} and address_of(folder) is None
    with pytest.raises(ConfigError, match=f"{at(tmp_path)} is not the address"):
        fetch_run(at(tmp_path))


def test_only_folders_of_the_cache_are_published(tmp_path, monkeypatch):
    """A run folder from elsewhere must not make this machine write anywhere."""
    address = at(tmp_path / "store")
    folder = begin_remote_run(address, may_replace=False)
    elsewhere = tmp_path / "elsewhere"
    working_folder(address).parent.rename(elsewhere)
    written(elsewhere / folder.name, FIRST)
    publish_run(elsewhere / folder.name)
    assert read_manifest(open_folder(address)).files == {}


@pytest.mark.parametrize("name", ["../run.json", "/etc/passwd", "a/../../b", "c:/x", "a\\b", ""])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path, name):
    (tmp_path / "runs" / "x").mkdir(parents=True)
    text = '{"run_files": 1, "token": "t", "files": {"%s": {"at": "run.json", "bytes": 2, "sha256": ""}}}'
    (tmp_path / "runs" / "x" / MANIFEST).write_text(text % name.replace("\\", "\\\\"))
    with pytest.raises(CheckpointError, match=rf"{MANIFEST} is damaged: .*names"):
        fetch_run(at(tmp_path))


def test_a_file_that_was_changed_at_the_address_is_not_loaded(tmp_path, monkeypatch):
    folder = begin_remote_run(at(tmp_path), may_replace=False)
    written(folder, FIRST)
    publish_run(folder)
    (tmp_path / "runs" / "x" / "run.json").write_bytes(b"[]")
    on_machine("two", tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match=r"x/run\.json is not the file"):
        fetch_run(at(tmp_path))
    (tmp_path / "runs" / "x" / "run.json").unlink()
    with pytest.raises(CheckpointError, match=r"run.json is missing"):
        fetch_run(at(tmp_path))


def test_copies_that_were_used_long_ago_are_removed_when_they_take_too_much(tmp_path):
    addresses = [at(tmp_path / name) for name in "abc"]
    for address in addresses:
        folder = begin_remote_run(address, may_replace=False)
        written(folder, SECOND)
        publish_run(folder, is_final=True)
    copies = [remote_model.fetch_model(address) for address in addresses]
    assert all(contents(copy).keys() == {"run.json", "metrics.jsonl", "model/config.json"} for copy in copies)
    remote_model.make_room(keep=copies[0], limit=0)  # all were used a moment ago
    assert all(copy.is_dir() for copy in copies)
    remote_model.make_room(keep=copies[0], limit=0, idle_seconds=0)
    assert [copy.is_dir() for copy in copies] == [True, False, False]
    assert not working_folder(addresses[0]).is_dir()
    assert remote_model.fetch_model(addresses[1]) == copies[1] and copies[1].is_dir()
