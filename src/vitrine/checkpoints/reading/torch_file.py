"""torch's own files (.pt, .pth, .bin): only tensors and plain containers are unpickled, never code."""

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from vitrine.checkpoints.reading.npz_file import require_no_bomb
from vitrine.checkpoints.tensors import Index, Spec
from vitrine.errors import CheckpointError

# Keys under which training scripts save the weights; averaged weights first.
NESTS = (
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
    "state_dict",
    "model_state_dict",
    "model",
    "teacher",
    "module",
    "net",
)
# Prefixes that wrappers add to every name.
WRAPPERS = ("module.", "_orig_mod.", "backbone.", "model.", "net.")

# Plain records that training scripts and Lightning save beside the weights: hyperparameters, paths.
HARMLESS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    argparse.Namespace,
    PurePosixPath,
    PureWindowsPath,
    PosixPath,
]


class TorchFile:
    """One file written by torch.save, mapped into memory where its format allows."""

    metadata: Mapping[str, str]

    def __init__(self, path: Path) -> None:
        self.path, self.metadata = path, {}
        tensors = find_tensors(unpickle(path))
        if not tensors:
            raise CheckpointError(f"{path} holds no tensors; a state dict is needed")
        self._tensors = without_wrappers(tensors)
        self.index: Index = {
            name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in self._tensors.items()
        }

    def read(self, name: str, *, row: int | None = None) -> Tensor:
        """Return one tensor, or one entry of its first axis; the caller must not write into it."""
        return self._tensors[name] if row is None else self._tensors[name][row]

    def read_into(self, name: str, out: Tensor, *, row: int | None = None) -> None:
        """Copy one tensor into `out`."""
        out.copy_(self.read(name, row=row))


def unpickle(path: Path) -> Any:
    """Load with `weights_only`; refuse a pickle that requires more."""
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            require_no_bomb(archive, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unusual protocol; torch refuses what it cannot read
            with torch.serialization.safe_globals(HARMLESS):
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True if is_zip else None)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"(?:GLOBAL|global|class|function)\s+`?([\w.]+\.[\w.]+)", str(error))
        what = f" (it needs {wanted[1]})" if wanted else ""
        if wanted is None and "Unsupported" not in str(error) and "Weights only" not in str(error):
            raise CheckpointError(f"{path} is truncated or damaged; download or copy it again") from None
        kind = "a Lightning checkpoint" if path.suffix == ".ckpt" else "a pickle"
        raise CheckpointError(
            f"{path} is {kind} that would run code when read{what} and is refused; "
            "save its state dict alone, best as safetensors"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        first = str(error).split("\n")[0]
        raise CheckpointError(
            f"{path} is truncated or damaged ({first}); download or copy it again"
        ) from None


def find_tensors(content: Any) -> dict[str, Tensor]:
    """Return the state dict inside a training script's checkpoint."""
    if not isinstance(content, Mapping):
        return {}
    for nest in NESTS:
        inner = find_tensors(content.get(nest))
        if inner:
            return inner
    return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}


def without_wrappers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the prefixes of data-parallel and compiled wrappers."""
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in tensors):
            return without_wrappers({name.removeprefix(wrapper): value for name, value in tensors.items()})
    return tensors
