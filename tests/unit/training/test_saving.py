"""Which of the saved states is the newest whole one, whatever moment a crash chose."""

import dataclasses
import json
from pathlib import Path

import pytest
from unit.training.simple import CONFIG, fresh_folder, small_model, small_task

from vitrine.errors import CheckpointError
from vitrine.training.loop import LAST, train
from vitrine.training.saving import newest_state, numbers_of
from vitrine.training.sharded_state import old_path, sharded_path


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
    with pytest.raises(CheckpointError, match="is not a training state that can be read"):
        numbers_of(broken)
