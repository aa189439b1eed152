"""The interface of every weights file: names with shapes, and tensors read one at a time."""

import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vitrine.errors import CheckpointError, MissingCheckpointError

TRUST_FILE = "trust.safetensors"
"""The file about a model's own limits, beside its weights; `evaluation.trust` reads and writes it."""
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
"""Names under which folders and hub repositories keep their weights, in order of preference."""
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".tar", ".onnx")


@dataclass(frozen=True)
class Spec:
    """Shape and type of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Size in memory and, without compression, on disk."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{shown_shape(self.shape)} {str(self.dtype).removeprefix('torch.')}"


Index = Mapping[str, Spec]


class TensorFile(Protocol):
    """An open file of named tensors, read on demand."""

    @property
    def path(self) -> Path:
        """The file, for messages."""

    @property
    def index(self) -> Index:
        """Every tensor by its name in the file."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's metadata."""

    def read(self, name: str, *, row: int | None = None) -> Tensor:
        """Read one tensor, or one entry of its first axis."""

    def read_into(self, name: str, out: Tensor, *, row: int | None = None) -> None:
        """Read one tensor, or one entry of its first axis, into `out`, which has its shape."""


def shown_shape(shape: tuple[int, ...]) -> str:
    """Format a shape: (768, 3, 16, 16)."""
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def require_readable(path: Path) -> None:
    """Refuse a file that is missing, empty or unreadable, before anything else is tried."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block, and a device never ends
            raise CheckpointError(f"{path} is not a regular file; give a file of weights")
        with path.open("rb") as file:
            first = file.read(1)
    except FileNotFoundError:
        raise MissingCheckpointError(f"no such file: {path}") from None
    except PermissionError:
        raise CheckpointError(f"no permission to read {path}; check its owner and mode") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    if not first:
        raise CheckpointError(f"{path} is empty; download or copy it again")
