"""The training state of a sharded run: a folder in torch's distributed format.

Any number of processes can read what any other number has written.
"""

import json
import shutil
import warnings
import zlib
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
from vitrine.runtime.files import move_into_place, parse_json, require_free_space, write_atomically
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.training.sharded_contents import (
    CONTENTS,
    TensorPlanner,
    TensorReader,
    read_contents,
    require_regular_file,
    unreadable,
)
from vitrine.training.state import TrainingState, checked_numbers, fill_optimizer, num_bytes, put_back

_PIECE_BYTES = 16 << 20
NUMBERS, CHECKSUMS = "numbers.json", "checksums.json"


def sharded_path(path: Path) -> Path:
    """Return the folder that a sharded run writes instead of the file `path`."""
    return path.with_suffix("")


def save_sharded(
    state: TrainingState,
    tensors: dict[str, Tensor],
    path: Path,
    *,
    processes: Processes,
    keeps_old: bool = False,
) -> None:
    """Write every process's part of the tensors into a new folder, then replace the old one by it."""
    fresh = fresh_path(path)

    def prepare() -> None:
        if not path.exists() and (fresh / NUMBERS).exists():  # a crash came between two renames
            move_into_place(fresh, path)
        shutil.rmtree(fresh, ignore_errors=True)
        require_free_space(path.parent, num_bytes(tensors), purpose="a checkpoint")

    def put_in_place() -> None:
        numbers = json.dumps(state.numbers())
        _write(fresh / CHECKSUMS, json.dumps(sums | {NUMBERS: f"{zlib.crc32(numbers.encode()):08x}"}))
        _write(fresh / NUMBERS, numbers)  # last: a folder that has it is complete
        shutil.rmtree(old_path(path), ignore_errors=True)
        if path.exists():
            move_into_place(path, old_path(path))
        move_into_place(fresh, path)
        if not keeps_old:
            shutil.rmtree(old_path(path), ignore_errors=True)

    on_first_process(prepare, processes)
    try:
        save(tensors, checkpoint_id=fresh)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise CheckpointError(
            f"{path} cannot be written: {reason}; the last good checkpoint is kept"
        ) from error
    sums = _checksums_of_all(fresh, processes)
    on_first_process(put_in_place, processes)


def require_undamaged_parts(path: Path) -> None:
    """Refuse a folder whose files have changed since they were written; folders of version 0.1 have no checksums."""
    if not (path / CHECKSUMS).exists():
        return
    try:
        sums = dict(parse_json((path / CHECKSUMS).read_text(encoding="utf-8")))
        for name, expected in sums.items():
            if name != Path(name).name:
                raise CheckpointError(f"it names the file {name!r} outside the folder")
            require_regular_file(path / name)
            if _checksum(path / name) != expected:
                raise CheckpointError(f"{name} has changed since it was saved")
    except (CheckpointError, OSError, ValueError, TypeError) as error:
        raise unreadable(path, error) from error


def _checksums_of_all(folder: Path, processes: Processes) -> dict[str, str]:
    """Let every process read back the parts that it has written; return the checksums of all."""
    own = [*folder.glob(f"__{processes.rank}_*"), *([folder / CONTENTS] if processes.is_first else [])]
    parts: list[Any] = [None] * processes.world_size
    dist.all_gather_object(parts, {file.name: _checksum(file) for file in own})
    return {name: value for part in parts for name, value in part.items()}


def _checksum(file: Path) -> str:
    total = 0
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            total = zlib.crc32(piece, total)
    return f"{total:08x}"


def _write(file: Path, text: str) -> None:
    with write_atomically(file, mode="w") as opened:
        opened.write(text)


def fresh_path(place: Path) -> Path:
    """Return where a state is written before it replaces the last one."""
    return place.with_name(place.name + ".new")


def old_path(place: Path) -> Path:
    """Return the folder of the state before the last one."""
    return place.with_name(place.name + ".old")


def load_sharded(state: TrainingState, path: Path) -> None:
    """Read a sharded state into a model that may be sharded differently, or not at all."""
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
        return checked_numbers(parse_json((path / NUMBERS).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
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
