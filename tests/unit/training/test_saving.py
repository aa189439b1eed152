"""Which of the saved states is the newest whole one, whatever moment a crash chose."""

import dataclasses
import json
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from unit.training.simple import CONFIG, Said, fresh_folder, small_model, small_task

from vitrine.data.loading.loader import Batch
from vitrine.errors import CheckpointError
from vitrine.runtime.progress import listening
from vitrine.runtime.run_folder import LAST
from vitrine.training.loop import train
from vitrine.training.saving import CHECKSUMS, STATE, newest_state, numbers_of, require_undamaged
from vitrine.training.sharded_state import old_path, sharded_path
from vitrine.training.stopping import StoppedError


def whole(folder: Path, steps: int) -> Path:
    train(small_model(), small_task(), config=dataclasses.replace(CONFIG, total_steps=steps), folder=folder)
    return folder / LAST


def sharded(path: Path, step: int | None) -> Path:
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(b"tensors")
    if step is not None:
        (path / "numbers.json").write_text(json.dumps({"step": step}))
    return path


def test_nothing_saved_is_nothing(tmp_path: Path) -> None:
    assert newest_state(tmp_path / LAST) is None


@pytest.mark.parametrize(("step", "newest"), [(3, "last.safetensors"), (9, "last")])
def test_of_a_file_and_a_folder_the_one_with_more_steps_counts(
    tmp_path: Path, step: int, newest: str
) -> None:
    path = whole(fresh_folder(tmp_path), steps=5)
    sharded(sharded_path(path), step)
    found = newest_state(path)
    assert found is not None and found.name == newest


def test_a_folder_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / LAST
    kept = sharded(sharded_path(path), 4)
    sharded(kept.with_name("last.new"), None)
    assert newest_state(path) == kept


def test_a_crash_between_two_renamings_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / LAST
    sharded(old_path(sharded_path(path)), 4)
    fresh = sharded(sharded_path(path).with_name("last.new"), 6)
    assert newest_state(path) == fresh
    assert numbers_of(fresh)["step"] == 6


def test_numbers_that_cannot_be_read_are_refused_in_one_sentence(tmp_path: Path) -> None:
    broken = sharded(tmp_path / "last", None)
    (broken / "numbers.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"last .*not a training state"):
        numbers_of(broken)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return the last checkpoint of a run that was stopped after eight steps; the one before is of five."""
    folder = fresh_folder(tmp_path)
    task = small_task()

    def until(start: int, stop: int) -> Iterator[Batch]:
        for step, batch in zip(range(start, stop), task.batches(start, stop), strict=True):
            if step == 7:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    with pytest.raises(StoppedError):
        train(small_model(), dataclasses.replace(task, batches=until), config=CONFIG, folder=folder)
    return folder / LAST


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.999])
def test_one_flipped_bit_is_noticed_and_the_checkpoint_before_is_used(stopped: Path, share: float) -> None:
    assert numbers_of(stopped)["step"] == 8
    assert newest_state(stopped) == stopped
    flip(stopped, int(share * stopped.stat().st_size))
    said = Said()
    with listening(said):
        before = newest_state(stopped)
    assert before is not None and before != stopped and numbers_of(before)["step"] == 5
    assert any("damaged" in remark and stopped.name in remark for remark in said.remarks)
    for reading in (
        require_undamaged,
        lambda path: train(small_model(), small_task(), config=CONFIG, folder=path.parent, resume_from=path),
    ):
        with pytest.raises(CheckpointError, match="not a training state"):
            reading(stopped)


def test_a_flipped_bit_in_the_numbers_is_noticed(stopped: Path) -> None:
    place = stopped.read_bytes().index(b'step\\": 8')
    flip(stopped, place + len(b'step\\": '))
    assert b'step\\": 9' in stopped.read_bytes()
    with pytest.raises(CheckpointError, match="changed since they were saved"):
        numbers_of(stopped)


@pytest.mark.parametrize("length", [0, 4, 1000, -1])
def test_a_checkpoint_that_was_cut_short_gives_way_to_the_one_before(stopped: Path, length: int) -> None:
    stopped.write_bytes(stopped.read_bytes()[:length])
    before = newest_state(stopped)
    assert before is not None and numbers_of(before)["step"] == 5


def test_a_run_whose_last_checkpoint_is_damaged_resumes_to_the_same_weights(
    tmp_path: Path, stopped: Path
) -> None:
    whole = small_model()
    train(whole, small_task(), config=CONFIG, folder=fresh_folder(tmp_path, "whole"))
    flip(stopped, stopped.stat().st_size // 2)
    resumed = small_model()
    train(resumed, small_task(), config=CONFIG, folder=stopped.parent, resume_from=newest_state(stopped))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert sorted(file.name for file in stopped.parent.iterdir()) == ["best.safetensors", "last.safetensors"]


def test_where_every_checkpoint_is_damaged_there_is_none(stopped: Path) -> None:
    for file in stopped.parent.glob("last*"):
        file.write_bytes(b"")
    assert newest_state(stopped) is None


def test_a_checkpoint_of_version_0_1_has_no_checksums_and_resumes(stopped: Path) -> None:
    with safe_open(str(stopped), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    assert CHECKSUMS in metadata
    save_file(tensors, stopped, metadata={STATE: metadata[STATE]})
    assert newest_state(stopped) == stopped
    model = small_model()
    train(model, small_task(), config=CONFIG, folder=stopped.parent, resume_from=stopped)


def test_a_damaged_part_of_a_sharded_state_gives_way_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / LAST
    last, old = (sharded(place, step) for place, step in (
        (sharded_path(path), 6), (old_path(sharded_path(path)), 4),
    ))  # fmt: skip
    sums = {file.name: f"{zlib.crc32(file.read_bytes()):08x}" for file in last.iterdir()}
    (last / "checksums.json").write_text(json.dumps(sums))
    assert newest_state(path) == last
    flip(last / "__0_0.distcp", 3)
    assert newest_state(path) == old


def test_damaged_checksums_are_reported_once(stopped: Path) -> None:
    with safe_open(stopped, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        metadata = file.metadata()
    save_file(tensors, stopped, metadata | {CHECKSUMS: "{"})
    with pytest.raises(CheckpointError) as caught:
        numbers_of(stopped)
    assert str(caught.value).count(str(stopped)) == 1
