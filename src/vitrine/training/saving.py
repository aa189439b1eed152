"""A run's state on disk: one safetensors file whose header carries the numbers, or the folder of a sharded run.

Written whole or not at all; read without running anything that is in it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrine.errors import CheckpointError
from vitrine.runtime.files import write_atomically
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.training.room import num_bytes, require_room
from vitrine.training.sharded_contents import require_regular_file, unreadable
from vitrine.training.sharded_state import (
    NUMBERS,
    fresh_path,
    load_sharded,
    old_path,
    read_consolidated,
    save_sharded,
    sharded_numbers,
    sharded_path,
)
from vitrine.training.state import TrainingState, checked_numbers, fill_optimizer, put_back, section


def save_state(state: TrainingState, path: Path, *, processes: Processes, shard: bool = False) -> None:
    """Write the state so that a crash leaves the old one or the new one; `path` without ending where sharded."""
    if shard and processes.world_size > 1:
        save_sharded(state, sharded_path(path), processes=processes)
        on_first_process(lambda: path.unlink(missing_ok=True), processes)
        return
    on_first_process(lambda: save_whole(state, path), processes)


def save_whole(state: TrainingState, path: Path) -> None:
    """Write the state as one file."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.tensors().items()}
    require_room(path, num_bytes(tensors))
    data = serialise(tensors, metadata={"vitrine_state": json.dumps(state.numbers())})
    try:
        with write_atomically(path) as file:
            file.write(data)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}; the last good checkpoint is kept"
        ) from error
    # What a run on more processes left here is older now.
    shutil.rmtree(sharded_path(path), ignore_errors=True)


def newest_state(path: Path) -> Path | None:
    """Find what was saved last as the file `path` or as the folder of a sharded run, interrupted ones included."""
    folder = sharded_path(path)
    folders = (folder, fresh_path(folder), old_path(folder))
    found = [path] if path.exists() else []
    # The numbers are written when all tensors are: a folder without them is not whole.
    found += [place for place in folders if (place / NUMBERS).exists()]
    return max(found, key=lambda place: int(numbers_of(place)["step"]), default=None)


def remove_state(path: Path) -> None:
    """Remove what was saved as the file `path` or as the folder of a sharded run, if it is there."""
    path.unlink(missing_ok=True)
    shutil.rmtree(sharded_path(path), ignore_errors=True)


def load_state(state: TrainingState, path: Path, *, processes: Processes) -> None:
    """Read a state into the model, the optimizer and the averages of `state`."""
    if path.is_dir():
        load_sharded(state, path)
        return
    numbers = numbers_of(path)
    try:
        with safe_open(str(path), framework="pt", device=str(processes.device)) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if any(isinstance(value, DTensor) for value in state.model.state_dict().values()):
            if numbers["step"]:  # before the first step an optimizer has no state
                fill_optimizer(state)
            tensors = shared_like(state.tensors(), tensors)
        put_back(state, tensors, numbers)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise unreadable(path, error) from error


def shared_like(targets: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut whole tensors, which every process has read, as those of a sharded model are cut."""
    cut = dict(tensors)
    for name, target in targets.items():
        if isinstance(target, DTensor) and name in tensors:
            cut[name] = distribute_tensor(
                tensors[name], target.device_mesh, target.placements, src_data_rank=None
            )
    return cut


def numbers_of(path: Path) -> dict[str, Any]:
    """Read the values of a saved state that are not tensors."""
    if path.is_dir():
        return sharded_numbers(path)
    try:
        require_regular_file(path)
        with safe_open(str(path), framework="pt") as file:
            return checked_numbers(json.loads(file.metadata()["vitrine_state"]))
    except Exception as error:
        raise unreadable(path, error) from error


def weights_of(path: Path) -> dict[str, Tensor]:
    """Read the weights to use from a saved state: the averages where there are any, on the CPU."""
    if path.is_dir():
        tensors = read_consolidated(path)
    else:
        numbers_of(path)  # refuses a file that is not a training state
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
            prefix = "averages." if any(name.startswith("averages.") for name in names) else "model."
            tensors = {name: file.get_tensor(name) for name in names if name.startswith(prefix)}
    return section(tensors, "averages.") or section(tensors, "model.")
