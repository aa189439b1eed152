"""The whole state of a run in one file: weights, optimizer, averages, step, best result, sums not yet logged.

A safetensors file whose header carries the numbers: written whole or not at all, read without pickle. Random
numbers need no state: every step draws from a seed made of the run's seed and the step. Sharded runs are saved
by torch's distributed checkpoints instead, in a folder that any number of processes can read.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from vitrine.errors import CheckpointError
from vitrine.runtime.files import write_atomically
from vitrine.training.averaging import Averages
from vitrine.training.processes import Processes, wait_for_all


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
    micro_batch: int | None = None
    sums: dict[str, float] = field(default_factory=dict)
    """Sums since the last logged step, so that a resumed run logs the same means."""

    def numbers(self) -> dict[str, Any]:
        """Return what is not a tensor."""
        names = ("step", "best", "best_step", "evaluations_since_best", "micro_batch", "sums")
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
    """Write the state so that a crash leaves the old file or the new one."""
    if shard and processes.world_size > 1:
        save_sharded(state, path, processes=processes)
        return
    if processes.is_first:
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.tensors().items()}
        require_room(path, sum(value.numel() * value.element_size() for value in tensors.values()))
        from safetensors.torch import save as serialise

        data = serialise(tensors, metadata={"vitrine_state": json.dumps(state.numbers())})
        try:
            with write_atomically(path) as file:
                file.write(data)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
    wait_for_all(processes)


def load_state(state: TrainingState, path: Path, *, processes: Processes) -> None:
    """Read a state into the model, the optimizer and the averages of `state`."""
    if path.is_dir():
        load_sharded(state, path)
        return
    device = str(processes.device)
    try:
        with safe_open(str(path), framework="pt", device=device) as file:
            numbers = json.loads(file.metadata()["vitrine_state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise CheckpointError(f"{path} is not a training state that can be read: {error}") from error
    put_back(state, tensors, numbers)


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

    fresh = path.with_name(path.name + ".new")
    if processes.is_first and fresh.exists():
        shutil.rmtree(fresh)
    wait_for_all(processes)
    save(state.tensors(), checkpoint_id=fresh)
    if processes.is_first:
        with write_atomically(fresh / "numbers.json", mode="w") as file:
            json.dump(state.numbers(), file)
        old = path.with_name(path.name + ".old")
        if path.exists():
            os.replace(path, old)  # noqa: PTH105
        os.replace(fresh, path)  # noqa: PTH105
        shutil.rmtree(old, ignore_errors=True)
    wait_for_all(processes)


def load_sharded(state: TrainingState, path: Path) -> None:
    """Read a sharded state into a model that may be sharded otherwise, or not at all."""
    from torch.distributed.checkpoint.state_dict_loader import load

    if not state.optimizer.state:  # the optimizer's tensors must exist to be filled
        for parameter, _ in parameter_names(state.optimizer):
            parameter.grad = torch.zeros_like(parameter)
        rates = [group["lr"] for group in state.optimizer.param_groups]
        for group in state.optimizer.param_groups:
            group["lr"] = 0.0
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        for group, rate in zip(state.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    tensors = state.tensors()
    load(tensors, checkpoint_id=path)
    put_back(state, tensors, json.loads((path / "numbers.json").read_text()))


def require_room(path: Path, num_bytes: int) -> None:
    """Refuse before writing what the disk cannot hold; the file that is there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < num_bytes:
        raise CheckpointError(
            f"{path.parent} has {free / 1e9:.2f} GB free and a checkpoint needs {num_bytes / 1e9:.2f} GB; "
            f"free some room (the last good checkpoint is kept)"
        )


def numbers_of(path: Path) -> dict[str, Any]:
    """Read what is not a tensor from a saved state."""
    if path.is_dir():
        return dict(json.loads((path / "numbers.json").read_text()))
    try:
        with safe_open(str(path), framework="pt") as file:
            found = json.loads(file.metadata()["vitrine_state"])
    except Exception as error:
        raise CheckpointError(f"{path} is not a training state that can be read: {error}") from error
    return dict(found)


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
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in found.items()
        if isinstance(entry, TensorStorageMetadata) and name.startswith(("averages.", "model."))
    }
    load(tensors, checkpoint_id=str(path), no_dist=True)
    return tensors
