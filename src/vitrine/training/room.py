"""Room on the disk, looked at before anything is written."""

import shutil
from pathlib import Path

from torch import Tensor

from vitrine.errors import CheckpointError
from vitrine.runtime.files import size_in_words


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
