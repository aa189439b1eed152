"""Images that are files under one folder: shared by class folders, manifests and lists."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.decoding.decode import read_file
from vitrine.data.sources.source import Example, Labels, Source
from vitrine.errors import DataError, MissingDataError
from vitrine.spelling import near_match, printable


class Strings(Sequence[str]):
    """Many strings in two arrays: their bytes joined, and where each one ends.

    A million paths of 40 characters take 48 MB here and about 200 MB as Python strings in a list.
    """

    def __init__(self, items: Iterable[str] = ()) -> None:
        buffer = bytearray()
        self._ends = np.fromiter(_grow(items, buffer), dtype=np.int64)
        # An array, not bytes: worker processes then see it in shared memory instead of a copy each.
        self._joined = np.frombuffer(buffer, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # a negative index counts from the end; one outside raises IndexError
        end = int(self._ends[index])
        start = int(self._ends[index - 1]) if index else 0
        return self._joined[start:end].tobytes().decode("utf-8", "surrogateescape")

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._joined.nbytes + self._ends.nbytes


class FileList(Source):
    """Files by path relative to `base` (by default `root`), with labels."""

    def __init__(
        self,
        root: Path,
        paths: Iterable[str],
        *,
        labels: Labels,
        classes: Sequence[str],
        address: str = "",
        base: Path | None = None,
        is_whole_folder: bool = False,
    ) -> None:
        self.root = root
        # Whether every image below `base` should be part of the set.
        self.is_whole_folder = is_whole_folder
        self.base = root if base is None else base
        self.paths = paths if isinstance(paths, Strings) else Strings(_inside(paths, self.base, address))
        self.labels = labels
        self.classes = tuple(classes)
        self.address = address or str(root)
        assert len(self.paths) == len(self.labels)

    def name(self, index: int) -> str:
        """Path of file `index` relative to the base."""
        name: str = self.paths[index]
        return name

    def path(self, index: int) -> Path:
        """Return the file that is example `index`."""
        return self.base / self.name(index)

    def read(self, index: int) -> Example:
        """Read the bytes of file `index`."""
        name = self.name(index)
        return Example(data=read_file(str(self.path(index))), label=self.label(index), name=name)

    def size(self, index: int) -> int:
        """Bytes of file `index`, 0 where it cannot be read."""
        try:
            return os.stat(os.path.join(str(self.base), self.name(index))).st_size  # noqa: PTH116, PTH118
        except OSError:
            return 0


def require_path(path: Path) -> Path:
    """Return `path` if it exists; the error suggests one with a similar name."""
    if os.path.lexists(path) and not path.exists():
        raise MissingDataError(f"{printable(str(path))} is a broken link to {os.readlink(path)}")  # noqa: PTH115
    if path.exists():
        return path
    raise no_such(path, kind="file" if path.suffix else "folder")


def require_inside(name: str, folder: str | Path, *, listing: str) -> None:
    """Refuse a file that a listing (a manifest, shards.json) names outside its own folder, unless that is allowed.

    A listing from elsewhere could name any file of this machine. $VITRINE_ALLOW_OUTSIDE allows it.
    """
    if name[:1] not in ("/", "\\") and ".." not in name and ":" not in name:
        return
    base = os.path.abspath(folder)  # noqa: PTH100 (links stay as they are)
    place = os.path.normpath(os.path.join(base, name))  # noqa: PTH118
    is_inside = place.startswith(os.path.join(base, "")) and "://" not in name  # noqa: PTH118
    if is_inside or os.environ.get("VITRINE_ALLOW_OUTSIDE") == "1":
        return
    raise DataError(
        f"{printable(listing)} names {printable(name)}, which lies outside its folder; move the files below it, or "
        "set VITRINE_ALLOW_OUTSIDE=1 if you trust this list"
    )


def _inside(names: Iterable[str], folder: Path, listing: str) -> Iterator[str]:
    for name in names:
        require_inside(name, folder, listing=listing or str(folder))
        yield name


def no_such(path: Path, *, kind: str) -> MissingDataError:
    """Return the error that `path` does not exist, with the most similar one that does."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        path, parent = parent, parent.parent
    text = f"no such {kind} {printable(str(path))}"
    try:
        names = os.listdir(parent)  # noqa: PTH208
    except OSError:
        names = []
    close = near_match(path.name, names)
    if not close:
        return MissingDataError(text)
    existing = printable(str(parent / close))
    return MissingDataError(f"{text}; did you mean {existing}?", suggestions=[existing])


def _grow(items: Iterable[str], buffer: bytearray) -> Iterator[int]:
    for item in items:
        buffer += item.encode("utf-8", "surrogateescape")
        yield len(buffer)
