"""Weights under prefixed names: a model inside a larger one, as Lightning and others save it.

`net.blocks.0...` beside `criterion.weight` and `train_accuracy.tp`: the tensors of the model are those behind the
prefix, and the others are skipped.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from vitrine.checkpoints.tensors import Index, TensorFile

MOST_PARTS = 4
"""Words of a prefix: `model.net.vit.` has three."""


def prefixes_in(names: Iterable[str]) -> list[str]:
    """Return every prefix of a name up to a dot, the shortest first; none inside a numbered list of layers."""
    prefixes: set[str] = set()
    for name in names:
        parts = name.split(".")[:-1]
        for count in range(1, min(len(parts), MOST_PARTS) + 1):
            if parts[count - 1].isdecimal():
                break
            prefixes.add(".".join(parts[:count]) + ".")
    return sorted(prefixes, key=lambda prefix: (prefix.count("."), prefix))


class PrefixedFile:
    """The tensors of a file whose names begin with a prefix, under their names without it."""

    def __init__(self, file: TensorFile, prefix: str) -> None:
        self._file, self._prefix = file, prefix
        self.index: Index = {
            name.removeprefix(prefix): spec for name, spec in file.index.items() if name.startswith(prefix)
        }
        self.num_skipped = len(file.index) - len(self.index)

    @property
    def prefix(self) -> str:
        """The prefix, the dot included."""
        return self._prefix

    @property
    def path(self) -> Path:
        """The file, for messages."""
        return self._file.path

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's metadata."""
        return self._file.metadata

    def read(self, name: str, *, row: int | None = None) -> Tensor:
        """Read one tensor, or one entry of its first axis."""
        return self._file.read(self._prefix + name, row=row)

    def read_into(self, name: str, out: Tensor, *, row: int | None = None) -> None:
        """Read one tensor, or one entry of its first axis, into `out`."""
        self._file.read_into(self._prefix + name, out, row=row)
