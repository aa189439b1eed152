"""A run's state on disk: one safetensors file with the numbers in its header, or the folder of a sharded run.

States are written atomically with a checksum per tensor; reading never executes anything in them.
"""

import contextlib
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrine.checkpoints.reading.safetensors_file import SafetensorsFile, Verifier
from vitrine.checkpoints.tensors import Spec
from vitrine.checkpoints.writing import chunks, write_safetensors
from vitrine.errors import CheckpointError
from vitrine.runtime.files import move_into_place, parse_json, remove_temporary_files, require_free_space
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.runtime.progress import notice
from vitrine.training.sharded_contents import require_regular_file, unreadable
from vitrine.training.sharded_state import (
    NUMBERS,
    fresh_path,
    load_sharded,
    old_path,
    read_consolidated,
    require_undamaged_parts,
    save_sharded,
    sharded_numbers,
    sharded_path,
)
from vitrine.training.state import (
    TrainingState,
    checked_numbers,
    fill_optimizer,
    num_bytes,
    put_back,
    section,
)

# Entries of the header; files of version 0.1 have no checksums.
STATE, CHECKSUMS = "vitrine_state", "vitrine_checksums"


def save_state(
    state: TrainingState,
    path: Path,
    *,
    processes: Processes,
    shard: bool = False,
    keeps_old: bool = False,
    weights_only: bool = False,
) -> None:
    """Write the state so that a crash leaves the old or the new one; a sharded state as a folder without suffix.

    With `keeps_old`, the previous state is kept, in case this one gets damaged. With `weights_only` the tensors are
    those that `weights_of` reads: no run can be resumed from them, and they take a fraction of the bytes.
    """
    tensors = state.weights() if weights_only else state.tensors()
    if shard and processes.world_size > 1:
        save_sharded(state, tensors, sharded_path(path), processes=processes, keeps_old=keeps_old)
        on_first_process(lambda: _remove_files(path), processes)
        return
    on_first_process(lambda: save_whole(state, tensors, path, keeps_old=keeps_old), processes)


def save_whole(
    state: TrainingState, tensors: dict[str, Tensor], path: Path, *, keeps_old: bool = False
) -> None:
    """Write tensors and numbers of the state as one file."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    require_free_space(path.parent, num_bytes(tensors), purpose="a checkpoint")
    numbers = json.dumps(state.numbers())
    sums = {STATE: _checksum(numbers.encode())} | {name: _checksum(value) for name, value in tensors.items()}
    fresh = fresh_path(path)
    try:
        write_safetensors(
            fresh,
            tensors.items(),
            specs={name: Spec(tuple(value.shape), value.dtype) for name, value in tensors.items()},
            metadata={STATE: numbers, CHECKSUMS: json.dumps(sums)},
        )
    except CheckpointError as error:
        raise CheckpointError(f"{error.problem}; the last good checkpoint is kept") from error
    if keeps_old and path.exists():
        move_into_place(path, old_path(path))
    move_into_place(fresh, path)
    remove_folders(path)  # the older state of a run on more processes


def newest_state(path: Path) -> Path | None:
    """Find the newest undamaged state that was saved as `path`, a file or a folder; report skipped damaged ones."""
    folder = sharded_path(path)
    places = [place for place in (path, fresh_path(path), old_path(path)) if place.exists()]
    # The numbers are written after all tensors: a folder without them is incomplete.
    places += [
        place for place in (folder, fresh_path(folder), old_path(folder)) if (place / NUMBERS).exists()
    ]
    steps: dict[Path, int] = {}
    for place in places:
        try:
            steps[place] = int(numbers_of(place)["step"])
        except CheckpointError as error:
            notice(f"Skipped a damaged checkpoint: {error}")
    for place in sorted(steps, key=lambda place: steps[place], reverse=True):
        try:
            require_undamaged(place)
        except CheckpointError as error:
            notice(f"Skipped a damaged checkpoint: {error}")
            continue
        return place
    return None


def require_undamaged(path: Path) -> None:
    """Refuse a state whose bytes have changed; states of version 0.1 have no checksums."""
    if path.is_dir():
        require_undamaged_parts(path)
        return
    with contextlib.closing(_opened(path)) as file:
        _numbers(file)
        sums = _checksums(file)
        for name in file.index:  # one at a time, because all of them may not fit
            if name in sums and _checksum(file.read(name)) != sums[name]:
                raise unreadable(path, CheckpointError(f"its tensor {name} has changed since it was saved"))


def remove_state(path: Path) -> None:
    """Remove everything that was saved as `path`."""
    _remove_files(path)
    remove_folders(path)


def remove_old_state(path: Path) -> None:
    """Remove the previous state."""
    old_path(path).unlink(missing_ok=True)
    shutil.rmtree(old_path(sharded_path(path)), ignore_errors=True)


def remove_leftovers(path: Path, *, used: Path | None) -> None:
    """Remove files of interrupted writes, and states that are damaged or older than the one in use."""
    remove_temporary_files(path.parent)
    if used is not None and used.parent == path.parent and used != path:
        path.unlink(missing_ok=True)


def _remove_files(path: Path) -> None:
    for place in (path, fresh_path(path), old_path(path)):
        place.unlink(missing_ok=True)


def remove_folders(path: Path) -> None:
    """Remove the folders of a sharded run."""
    folder = sharded_path(path)
    for place in (folder, fresh_path(folder), old_path(folder)):
        shutil.rmtree(place, ignore_errors=True)


def load_state(state: TrainingState, path: Path, *, processes: Processes) -> None:
    """Read a state into the model, the optimizer and the averages of `state`."""
    if path.is_dir():
        load_sharded(state, path)
        return
    tensors, numbers = _read(path)
    try:
        tensors = {name: value.to(processes.device) for name, value in tensors.items()}
        if any(isinstance(value, DTensor) for value in state.model.state_dict().values()):
            if numbers["step"]:  # before the first step an optimizer has no state
                fill_optimizer(state)
            tensors = shared_like(state.tensors(), tensors)
        put_back(state, tensors, numbers)
    except (RuntimeError, ValueError) as error:
        raise unreadable(path, error) from error


def shared_like(targets: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Shard whole tensors, which every process has read, like the sharded model."""
    shards = dict(tensors)
    for name, target in targets.items():
        if isinstance(target, DTensor) and name in tensors:
            shards[name] = distribute_tensor(
                tensors[name], target.device_mesh, target.placements, src_data_rank=None
            )
    return shards


def numbers_of(path: Path) -> dict[str, Any]:
    """Read the values of a saved state that are not tensors."""
    if path.is_dir():
        return sharded_numbers(path)
    with contextlib.closing(_opened(path)) as file:
        return _numbers(file)


def weights_of(path: Path) -> dict[str, Tensor]:
    """Read the weights to use from a saved state to the CPU: the averages, if there are any."""
    tensors = read_consolidated(path) if path.is_dir() else _read(path, "averages.", "model.")[0]
    return section(tensors, "averages.") or section(tensors, "model.")


def _read(path: Path, *prefixes: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors with the first prefix that occurs (all tensors without one), and the numbers."""
    with contextlib.closing(_opened(path)) as file:
        numbers = _numbers(file)
        names = list(file.index)
        for prefix in prefixes:
            if chosen := [name for name in file.index if name.startswith(prefix)]:
                names = chosen
                break
        file.verifier = Verifier(_checksums(file), path=path)
        try:
            tensors = {name: file.read(name) for name in names}
            file.verifier.finish()
        except CheckpointError as error:
            raise unreadable(path, error) from error
    return tensors, numbers


def _opened(path: Path) -> SafetensorsFile:
    try:
        require_regular_file(path)
        return SafetensorsFile(path)
    except (CheckpointError, OSError) as error:
        raise unreadable(path, error) from error


def _numbers(file: SafetensorsFile) -> dict[str, Any]:
    sums = _checksums(file)
    try:
        text = file.metadata[STATE]
        if sums.get(STATE, _checksum(text.encode())) != _checksum(text.encode()):
            raise CheckpointError("its values have changed since they were saved")
        return checked_numbers(parse_json(text))
    except (CheckpointError, KeyError, ValueError) as error:
        raise unreadable(file.path, error) from error


def _checksums(file: SafetensorsFile) -> dict[str, str]:
    try:
        return dict(parse_json(file.metadata.get(CHECKSUMS, "{}")))
    except (ValueError, TypeError) as error:
        raise unreadable(file.path, error) from error


def _checksum(value: Tensor | bytes) -> str:
    total = 0
    for piece in [value] if isinstance(value, bytes) else chunks(value):
        total = zlib.crc32(piece, total)
    return f"{total:08x}"
