"""The state of a sharded run: a folder by torch's distributed checkpoints that any number of processes can read.

Its table of contents is a pickle. Only the few kinds of thing that torch puts there are let in, so that a folder from
somebody else cannot run code.
"""

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from vitrine.errors import CheckpointError
from vitrine.runtime.files import write_atomically
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.training.room import num_bytes, require_room
from vitrine.training.state import TrainingState, fill_optimizer, put_back

CONTENTS, NUMBERS = ".metadata", "numbers.json"
# What torch's tables of contents are made of, beside plain values and dtypes.
_KNOWN = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("PosixPath", "WindowsPath"),
}  # fmt: skip


def sharded_path(path: Path) -> Path:
    """Return the folder that a sharded run keeps in the place of the file `path`."""
    return path.with_suffix("")


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
    from torch.distributed.checkpoint.state_dict_loader import load

    require_plain(path)
    numbers = sharded_numbers(path)
    if numbers["step"]:  # before the first one an optimizer keeps nothing
        fill_optimizer(state)
    tensors = state.tensors()
    try:
        with quiet():
            load(tensors, checkpoint_id=path, no_dist=not dist.is_initialized())
    except (CheckpointException, OSError) as error:
        raise unreadable(path, error) from error
    put_back(state, tensors, numbers)


def sharded_numbers(path: Path) -> dict[str, Any]:
    """Read what is not a tensor."""
    return dict(json.loads((path / NUMBERS).read_text()))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from warning that one process reads what several wrote: that is the point here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*intent is to (load|save) in a single process")
        yield


def read_consolidated(path: Path) -> dict[str, Tensor]:
    """Read the weights of a sharded state whole, in one process."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    require_plain(path)
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


class _Contents(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _KNOWN.get(module, ()):
            return super().find_class(module, name)
        raise CheckpointError(f"it asks for {module}.{name}, which may run code")


def require_plain(path: Path) -> None:
    """Refuse a folder whose table of contents holds anything but what torch writes there."""
    try:
        with (path / CONTENTS).open("rb") as file:
            _Contents(file).load()
    except Exception as error:  # a damaged pickle may raise anything
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> CheckpointError:
    """Say that a file is not one of ours, or not whole."""
    return CheckpointError(f"{path} is not a training state that can be read: {error}")
