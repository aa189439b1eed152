"""A sharded state from somebody else is a folder of pickles: nothing in it may run, whichever file was crafted."""

import copy
import io
import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from unit.training.simple import CONFIG, assert_equal, small_model, weights

from vitrine.errors import CheckpointError
from vitrine.runtime.processes import Processes
from vitrine.training.averages import Averages
from vitrine.training.optimizer import make_optimizer
from vitrine.training.saving import load_state, weights_of
from vitrine.training.sharded_contents import CONTENTS, TensorPlanner, TensorReader, read_contents
from vitrine.training.sharded_state import NUMBERS
from vitrine.training.state import TrainingState, fill_optimizer

ATTACKED = "model.head.bias"
PART = "__0_0.distcp"


def fresh_state() -> TrainingState:
    model = small_model()
    return TrainingState(
        model=model, optimizer=make_optimizer(model, CONFIG), averages=Averages(model, decay=0.9)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the state of a run after three steps, as torch's distributed checkpoints write it."""
    state, path = fresh_state(), tmp_path / "last"
    fill_optimizer(state)
    state.step = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process saves alone is meant
        save(dict(state.tensors()), checkpoint_id=path, no_dist=True)
    (path / NUMBERS).write_text(json.dumps(state.numbers()))
    return path


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.place),)


def refuse(folder: Path, *, match: str | None = None) -> None:
    """Resume from the folder and read its weights: both must refuse."""
    with pytest.raises(CheckpointError, match=match):
        load_state(fresh_state(), folder, processes=Processes())
    with pytest.raises(CheckpointError, match=match):
        weights_of(folder)


def change_contents(folder: Path, change: Callable[[Metadata], object]) -> None:
    contents = pickle.loads((folder / CONTENTS).read_bytes())
    change(contents)
    (folder / CONTENTS).write_bytes(pickle.dumps(contents))


def call_it_bytes(folder: Path, done: Path) -> None:
    """Call an entry bytes in the table of contents, and put an object that runs code into its part."""
    with (folder / PART).open("ab") as file:
        offset = file.tell()
        torch.save(Hostile(done), file)
        length = file.tell() - offset

    def change(contents: Metadata) -> None:
        contents.state_dict_metadata[ATTACKED] = BytesStorageMetadata()
        contents.storage_data = {
            index: part for index, part in contents.storage_data.items() if index.fqn != ATTACKED
        }
        contents.storage_data[MetadataIndex(ATTACKED)] = _StorageInfo(PART, offset, length)

    change_contents(folder, change)


def test_a_state_that_torch_wrote_is_read(folder: Path) -> None:
    state = fresh_state()
    load_state(state, folder, processes=Processes())
    assert state.step == 3
    assert_equal(weights_of(folder), weights(small_model()))


def test_an_entry_that_is_called_bytes_runs_nothing(folder: Path, tmp_path: Path) -> None:
    call_it_bytes(folder, tmp_path / "done")
    refuse(folder, match=f"{ATTACKED} is not a tensor")
    assert not (tmp_path / "done").exists()
    # The attack is real: torch's own reader and planner run it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(dict(fresh_state().tensors()), checkpoint_id=folder, no_dist=True)
    assert (tmp_path / "done").exists()


def test_the_planner_refuses_bytes_even_where_the_table_was_not_checked(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a tensor"):
        TensorPlanner().load_bytes(_item(ATTACKED), io.BytesIO(pickle.dumps(Hostile(tmp_path / "done"))))
    assert not (tmp_path / "done").exists()


def _item(name: str) -> Any:
    return SimpleNamespace(storage_index=MetadataIndex(name), dest_index=MetadataIndex(name))


def test_a_part_that_would_run_code_is_refused_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    hostile = io.BytesIO()
    torch.save(Hostile(tmp_path / "done"), hostile)
    whole = (folder / PART).read_bytes()
    (folder / PART).write_bytes(hostile.getvalue() + whole)

    def change(contents: Metadata) -> None:
        for index in contents.storage_data:
            contents.storage_data[index] = _StorageInfo(PART, 0, len(hostile.getvalue()))

    change_contents(folder, change)
    refuse(folder)
    assert not (tmp_path / "done").exists()


def test_a_table_of_contents_that_would_run_code_is_refused_and_runs_nothing(
    folder: Path, tmp_path: Path
) -> None:
    (folder / CONTENTS).write_bytes(pickle.dumps(Hostile(tmp_path / "done")))
    refuse(folder, match=r"mkdir.*may run code")
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("call", [torch.load, torch.hub.load, getattr], ids=lambda call: call.__name__)
def test_functions_of_torch_and_python_are_refused(folder: Path, call: object) -> None:
    class Asking:
        def __reduce__(self) -> object:
            return call, ("file",)

    (folder / CONTENTS).write_bytes(pickle.dumps(Asking()))
    refuse(folder, match="may run code")


def test_a_table_of_contents_cannot_change_the_classes_of_the_program(folder: Path) -> None:
    # GLOBAL pathlib.PosixPath; BUILD with slot state {"is_symlink": torch.Size}: C's unpickler calls setattr for it.
    attack = b"cpathlib\nPosixPath\n(N}Vis_symlink\nctorch\nSize\nstb."
    before = type(folder).is_symlink
    (folder / CONTENTS).write_bytes(attack)
    refuse(folder)
    assert type(folder).is_symlink is before


def an_entry(contents: Metadata) -> Any:
    return contents.state_dict_metadata[ATTACKED]


MALFORMED: dict[str, tuple[Callable[[Metadata], object], str]] = {
    "a tuple for a size": (lambda contents: setattr(an_entry(contents), "size", (10,)), "is not a torch.Size"),
    "a length below zero": (lambda contents: setattr(an_entry(contents), "size", torch.Size((-1,))), "not a length"),
    "no dtype": (lambda contents: setattr(an_entry(contents).properties, "dtype", None), "has no dtype"),
    "a number for a name": (
        lambda contents: contents.state_dict_metadata.update({7: an_entry(contents)}), "not a name"
    ),
    "a size for a chunk": (
        lambda contents: setattr(an_entry(contents), "chunks", [torch.Size((1,))]),
        "contains Size instead of ChunkStorageMetadata",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED)
def test_an_entry_of_the_table_that_is_malformed_is_named(folder: Path, kind: str) -> None:
    change, reason = MALFORMED[kind]
    change_contents(folder, change)
    refuse(folder, match=reason)


def test_a_reference_to_an_object_outside_the_table_is_refused(folder: Path) -> None:
    (folder / CONTENTS).write_bytes(b"Pelsewhere\n.")  # PERSID, STOP
    refuse(folder, match="outside the file")


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "..", "parts/__0_0.distcp"])
def test_a_part_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    (folder.parent / "outside").write_bytes((folder / PART).read_bytes())

    def change(contents: Metadata) -> None:
        for index, part in contents.storage_data.items():
            contents.storage_data[index] = _StorageInfo(name, part.offset, part.length)

    change_contents(folder, change)
    refuse(folder, match="outside the folder")


@pytest.mark.parametrize("name", [PART, CONTENTS, NUMBERS])
def test_files_that_are_links_or_pipes_are_refused_without_reading_them(folder: Path, name: str) -> None:
    (folder / name).rename(folder.parent / "elsewhere")
    (folder / name).symlink_to(folder.parent / "elsewhere")
    with pytest.raises(CheckpointError, match="symbolic link"):
        load_state(fresh_state(), folder, processes=Processes())
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_state(fresh_state(), folder, processes=Processes())


def test_tensors_larger_than_the_files_are_refused_before_they_are_allocated(folder: Path) -> None:
    def change(contents: Metadata) -> None:
        contents.state_dict_metadata[ATTACKED].size = torch.Size((2**50,))

    change_contents(folder, change)
    with pytest.raises(CheckpointError, match="its files hold"):
        weights_of(folder)


def test_a_compressed_part_is_refused(folder: Path) -> None:
    def change(contents: Metadata) -> None:
        for part in contents.storage_data.values():
            part.transform_descriptors = ["stream.zstd/1"]

    change_contents(folder, change)
    refuse(folder, match="transformed")


def test_a_memo_index_of_four_billion_allocates_nothing(folder: Path) -> None:
    (folder / CONTENTS).write_bytes(b"\x80\x04Nr\xff\xff\xff\xff.")  # LONG_BINPUT 2**32 - 1
    refuse(folder, match="not a training state")


def test_a_table_that_is_cut_short_or_missing_is_refused(folder: Path) -> None:
    whole = (folder / CONTENTS).read_bytes()
    (folder / CONTENTS).write_bytes(whole[: len(whole) // 2])
    refuse(folder, match="not a training state that can be read")
    (folder / CONTENTS).unlink()
    refuse(folder, match="not a training state that can be read")


@pytest.mark.parametrize(
    "changed",
    [
        {"tensors": "x"}, {"step": "3"}, {"step": -1}, {"model": None}, {"sums": {"loss": []}}, {"__class__": 1},
        {"best": "high"},
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_a_state_does_not_have_are_refused(folder: Path, changed: dict[str, Any]) -> None:
    numbers = copy.deepcopy(json.loads((folder / NUMBERS).read_text())) | changed
    (folder / NUMBERS).write_text(json.dumps(numbers))
    with pytest.raises(CheckpointError, match="not a training state"):
        load_state(fresh_state(), folder, processes=Processes())


def test_numbers_nested_without_end_are_refused(folder: Path) -> None:
    (folder / NUMBERS).write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match="not a training state"):
        load_state(fresh_state(), folder, processes=Processes())


def test_the_table_that_is_checked_is_the_table_that_is_used(folder: Path) -> None:
    contents = read_contents(folder)
    assert TensorReader(folder).read_metadata() == contents
    assert contents.state_dict_metadata.keys() == fresh_state_names()


def fresh_state_names() -> set[str]:
    state = fresh_state()
    fill_optimizer(state)
    return set(state.tensors())
