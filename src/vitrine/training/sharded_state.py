"""The training state of a sharded run: a folder in torch's distributed format.

Any number of processes can read what any other number has written.
"""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from vitrine.errors import CheckpointError
from vitrine.runtime.files import move_into_place, write_atomically
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.training.room import num_bytes, require_room
from vitrine.training.sharded_contents import (
    TensorPlanner,
    TensorReader,
    read_contents,
    require_regular_file,
    unreadable,
)
from vitrine.training.state import TrainingState, checked_numbers, fill_optimizer, put_back

NUMBERS = "numbers.json"


def sharded_path(path: Path) -> Path:
    """Return the folder that a sharded run keeps in the place of the file `path`."""
    return path.with_suffix("")


def save_sharded(state: TrainingState, path: Path, *, processes: Processes) -> None:
    """Write every process's part into a new folder, then put it in the place of the old one."""
    fresh, tensors = fresh_path(path), state.tensors()

    def prepare() -> None:
        if not path.exists() and (fresh / NUMBERS).exists():  # a crash came between two renamings
            move_into_place(fresh, path)
        shutil.rmtree(fresh, ignore_errors=True)
        require_room(path, num_bytes(tensors))

    def put_in_place() -> None:
        with write_atomically(fresh / NUMBERS, mode="w") as file:
            json.dump(state.numbers(), file)
        shutil.rmtree(old_path(path), ignore_errors=True)
        if path.exists():
            move_into_place(path, old_path(path))
        move_into_place(fresh, path)
        shutil.rmtree(old_path(path), ignore_errors=True)

    on_first_process(prepare, processes)
    try:
        save(tensors, checkpoint_id=fresh)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise CheckpointError(
            f"{path} cannot be written: {reason}; the last good checkpoint is kept"
        ) from error
    on_first_process(put_in_place, processes)


def fresh_path(folder: Path) -> Path:
    """Return where a sharded state is written before it takes the place of the last one."""
    return folder.with_name(folder.name + ".new")


def old_path(folder: Path) -> Path:
    """Return where the last sharded state is for the moment in which a new one takes its place."""
    return folder.with_name(folder.name + ".old")


def load_sharded(state: TrainingState, path: Path) -> None:
    """Read a sharded state into a model that may be sharded otherwise, or not at all."""
    numbers = sharded_numbers(path)
    if numbers["step"]:  # before the first step an optimizer has no state
        fill_optimizer(state)
    tensors = state.tensors()
    read_tensors(tensors, path, alone=not dist.is_initialized())
    put_back(state, tensors, numbers)


def read_consolidated(path: Path) -> dict[str, Tensor]:
    """Read the weights of a sharded state whole, in one process."""
    entries = read_contents(path).state_dict_metadata
    prefix = "averages." if any(name.startswith("averages.") for name in entries) else "model."
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata) and name.startswith(prefix)
    }
    read_tensors(tensors, path, alone=True)
    return tensors


def sharded_numbers(path: Path) -> dict[str, Any]:
    """Read the values of a sharded state that are not tensors."""
    try:
        require_regular_file(path / NUMBERS)
        return checked_numbers(json.loads((path / NUMBERS).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from error


def read_tensors(tensors: dict[str, Tensor], path: Path, *, alone: bool) -> None:
    """Fill `tensors` from the folder `path`, in this process only or in all of them together."""
    try:
        with warnings.catch_warnings():
            # One process may read what several have written.
            warnings.filterwarnings("ignore", message=".*intent is to (load|save) in a single process")
            load(tensors, storage_reader=TensorReader(path), planner=TensorPlanner(), no_dist=alone)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise (reason if isinstance(reason, CheckpointError) else unreadable(path, reason)) from error
    except OSError as error:
        raise unreadable(path, error) from error
