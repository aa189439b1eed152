"""The whole state of a run in one file: weights, optimizer, averages, step, best result, sums not yet logged.

A safetensors file whose header carries the numbers: written whole or not at all, read without pickle. Random
numbers need no state: every step draws from a seed made of the run's seed and the step. Sharded runs are saved
by torch's distributed checkpoints instead, in a folder that any number of processes can read.
"""

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrine.errors import CheckpointError
from vitrine.runtime.files import size_in_words, write_atomically
from vitrine.runtime.processes import Processes, by_the_first
from vitrine.training.averaging import Averages

NUMBERS = "numbers.json"


@dataclass
class TrainingState:
    """Everything that a step changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    averages: Averages | None
    step: int = 0
    """Steps done."""
    best: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    evaluated_step: int | None = None
    """The step of the last evaluation, so that a run that stopped right after it does not repeat it."""
    micro_batch: int | None = None
    """Set where it is smaller than a process's share of the batch: sums are added up in the same order again."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums since the last logged step, so that a resumed run logs the same means."""

    def numbers(self) -> dict[str, Any]:
        """Return what is not a tensor."""
        names = (
            "step", "best", "best_step", "evaluations_since_best", "evaluated_step", "micro_batch", "sums",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor under a name that says whose it is."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for parameter, name in parameter_names(self.optimizer):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{name}:{key}"] = value
        if self.averages is not None:
            found |= {f"averages.{name}": value for name, value in self.averages.weights.items()}
        return found


def parameter_names(optimizer: torch.optim.Optimizer) -> list[tuple[nn.Parameter, str]]:
    """List the trained parameters with their names in the model."""
    return [
        (parameter, name)
        for group in optimizer.param_groups
        for parameter, name in zip(group["params"], group["names"], strict=True)
    ]


def save_state(state: TrainingState, path: Path, *, processes: Processes, shard: bool = False) -> None:
    """Write the state so that a crash leaves the old one or the new one; `path` without ending where sharded."""
    if shard and processes.world_size > 1:
        save_sharded(state, sharded_path(path), processes=processes)
        by_the_first(lambda: path.unlink(missing_ok=True), processes)
        return
    by_the_first(lambda: save_whole(state, path), processes)


def save_whole(state: TrainingState, path: Path) -> None:
    """Write the state as one file."""
    from safetensors.torch import save as serialise

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


def sharded_path(path: Path) -> Path:
    """Return the folder that a sharded run keeps in the place of the file `path`."""
    return path.with_suffix("")


def newest_state(path: Path) -> Path | None:
    """Find what was saved last as the file `path` or as the folder of a sharded run, interrupted ones included."""
    folder = sharded_path(path)
    folders = (folder, fresh_path(folder), old_path(folder))
    found = [path] if path.exists() else []
    # The numbers are written when all tensors are: a folder without them is not whole.
    found += [place for place in folders if (place / NUMBERS).exists()]
    return max(found, key=lambda place: int(numbers_of(place)["step"]), default=None)


def load_state(state: TrainingState, path: Path, *, processes: Processes) -> None:
    """Read a state into the model, the optimizer and the averages of `state`."""
    if path.is_dir():
        load_sharded(state, path)
        return
    device = str(processes.device)
    numbers = numbers_of(path)
    try:
        with safe_open(str(path), framework="pt", device=device) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise unreadable(path, error) from error
    if any(isinstance(value, DTensor) for value in state.model.state_dict().values()):
        fill_optimizer(state)
        tensors = shared_like(state.tensors(), tensors)
    put_back(state, tensors, numbers)


def shared_like(targets: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cut whole tensors, which every process has read, as those of a sharded model are cut."""
    cut = dict(tensors)
    for name, target in targets.items():
        if isinstance(target, DTensor) and name in tensors:
            cut[name] = distribute_tensor(
                tensors[name], target.device_mesh, target.placements, src_data_rank=None
            )
    return cut


def put_back(state: TrainingState, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Fill `state` with what was read."""
    state.model.load_state_dict(section(tensors, "model."))
    saved = section(tensors, "optimizer.")
    for parameter, name in parameter_names(state.optimizer):
        own = {
            key.rpartition(":")[2]: value for key, value in saved.items() if key.rpartition(":")[0] == name
        }
        if own:
            state.optimizer.state[parameter] = own
    if state.averages is not None:
        state.averages.weights = section(tensors, "averages.")
    for name, value in numbers.items():
        setattr(state, name, value)


def section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def save_sharded(state: TrainingState, path: Path, *, processes: Processes) -> None:
    """Write every process's part into a new folder, then put it in the place of the old one."""
    from torch.distributed.checkpoint.state_dict_saver import save

    fresh, tensors = fresh_path(path), state.tensors()

    def prepare() -> None:
        if not path.exists() and (fresh / NUMBERS).exists():  # a crash came between two renamings
            os.replace(fresh, path)  # noqa: PTH105
        shutil.rmtree(fresh, ignore_errors=True)
        require_room(path, num_bytes(tensors))

    def put_in_place() -> None:
        with write_atomically(fresh / NUMBERS, mode="w") as file:
            json.dump(state.numbers(), file)
        shutil.rmtree(old_path(path), ignore_errors=True)
        if path.exists():
            os.replace(path, old_path(path))  # noqa: PTH105
        os.replace(fresh, path)  # noqa: PTH105
        shutil.rmtree(old_path(path), ignore_errors=True)

    by_the_first(prepare, processes)
    try:
        save(tensors, checkpoint_id=fresh)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise CheckpointError(
            f"{path} cannot be written: {reason}; the last good checkpoint is kept"
        ) from error
    by_the_first(put_in_place, processes)


def fresh_path(folder: Path) -> Path:
    """Return where a sharded state is written before it takes the place of the last one."""
    return folder.with_name(folder.name + ".new")


def old_path(folder: Path) -> Path:
    """Return where the last sharded state is for the moment in which a new one takes its place."""
    return folder.with_name(folder.name + ".old")


def load_sharded(state: TrainingState, path: Path) -> None:
    """Read a sharded state into a model that may be sharded otherwise, or not at all."""
    from torch.distributed.checkpoint.state_dict_loader import load

    fill_optimizer(state)
    tensors, numbers = state.tensors(), numbers_of(path)
    try:
        with quiet():
            load(tensors, checkpoint_id=path, no_dist=not dist.is_initialized())
    except (CheckpointException, OSError) as error:
        raise unreadable(path, error) from error
    put_back(state, tensors, numbers)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from warning that one process reads what several wrote: that is the point here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*intent is to (load|save) in a single process")
        yield


def fill_optimizer(state: TrainingState) -> None:
    """Make the optimizer's tensors, so that they can be filled, by a step that changes nothing."""
    optimizer = state.optimizer
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for parameter, _ in parameter_names(optimizer):
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def num_bytes(tensors: dict[str, Tensor]) -> int:
    """Count the bytes of tensors, those of other processes included."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


def require_room(path: Path, needed: int) -> None:
    """Refuse before writing what the disk cannot hold; the file that is there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise CheckpointError(
            f"{path.parent} has {size_in_words(free)} free and a checkpoint needs {size_in_words(needed)}; make room "
            "(the last good checkpoint is kept)"
        )


def numbers_of(path: Path) -> dict[str, Any]:
    """Read what is not a tensor from a saved state."""
    try:
        if path.is_dir():
            return dict(json.loads((path / NUMBERS).read_text()))
        with safe_open(str(path), framework="pt") as file:
            return dict(json.loads(file.metadata()["vitrine_state"]))
    except Exception as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> CheckpointError:
    """Say that a file is not one of ours, or not whole."""
    return CheckpointError(f"{path} is not a training state that can be read: {error}")


def weights_of(path: Path) -> dict[str, Tensor]:
    """Read the weights to use from a saved state: the averages where there are any, on the CPU."""
    if path.is_dir():
        tensors = read_consolidated(path)
    else:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
            prefix = "averages." if any(name.startswith("averages.") for name in names) else "model."
            tensors = {name: file.get_tensor(name) for name in names if name.startswith(prefix)}
    return section(tensors, "averages.") or section(tensors, "model.")


def read_consolidated(path: Path) -> dict[str, Tensor]:
    """Read the weights of a sharded state whole, in one process."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    found = FileSystemReader(str(path)).read_metadata().state_dict_metadata
    prefix = "averages." if any(name.startswith("averages.") for name in found) else "model."
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in found.items()
        if isinstance(entry, TensorStorageMetadata) and name.startswith(prefix)
    }
    with quiet():
        load(tensors, checkpoint_id=str(path), no_dist=True)
    return tensors
