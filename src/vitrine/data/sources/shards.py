"""Tar shards in WebDataset's layout, read by an index: local, or at any fsspec or http address.

`vitrine shard` writes `shards.json` (splits, classes, checksums) and one index per shard, so that only the requested
images are read. Other shards are indexed by reading their headers once.
"""

import io
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.sources.file_list import Strings, require_inside, require_path
from vitrine.data.sources.labels import class_number, pack_labels, sorted_classes
from vitrine.data.sources.remote_files import content_of
from vitrine.data.sources.source import ALL, NO_LABEL, SPLIT_NAMES, Example, Labels, Source
from vitrine.data.sources.tar_index import Member, read_index, walk_tar
from vitrine.errors import DataError
from vitrine.runtime.block_cache import read_cached
from vitrine.runtime.files import parse_json
from vitrine.runtime.places import is_remote
from vitrine.runtime.remote_store import names_at, read_remote, remote_system
from vitrine.spelling import printable

LISTING = "shards.json"
# Shards that stay open: systems allow a process 256 files or more, and ImageNet-21k has thousands of shards.
_MOST_OPEN = 96


def recognises(address: str) -> bool:
    """Accept a .tar file, a folder with shards.json or .tar files, and addresses of these."""
    if is_remote(address):
        return content_of(address) == "shards"
    path = Path(address)
    if path.is_dir():
        return (path / LISTING).is_file() or any(path.glob("*.tar"))
    return path.suffix.lower() == ".tar"


def open_all(address: str, *, needs_labels: bool = True) -> dict[str, Source]:
    """Open shards by their listing, or by reading the headers of each tar if there is none."""
    if "://" in address:
        place = address.rstrip("/")
        if place.endswith(".tar"):
            return _walked([address], address=address, root=None, needs_labels=needs_labels)
        names = [] if place.startswith(("http://", "https://")) else names_at(place)
        if not names or LISTING in names:
            return _listed(place, address=address, root=None)
        tars = [f"{place}/{name}" for name in sorted(names) if name.endswith(".tar")]
        return _walked(tars, address=address, root=None, needs_labels=needs_labels)
    path = require_path(Path(address))
    if (path / LISTING).is_file():
        return _listed(str(path), address=address, root=path)
    files = sorted(path.glob("*.tar")) if path.is_dir() else [path]
    return _walked([str(file) for file in files], address=address, root=path, needs_labels=needs_labels)


class ShardSource(Source):
    """Images in tar files, each read by its offset."""

    def __init__(
        self,
        tars: Sequence[str],
        *,
        shard: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        names: Strings,
        labels: Labels,
        classes: Sequence[str],
        address: str,
        root: Path | None,
    ) -> None:
        self.tars, self.names, self.labels, self.classes = tuple(tars), names, labels, tuple(classes)
        self.shard, self.offsets = shard.astype(np.uint32), offsets.astype(np.int64)
        self.sizes = sizes.astype(np.uint32)
        self.address, self.root = address, root
        self._forget()

    def name(self, index: int) -> str:
        """Return the name of image `index`, if known the one it had before sharding."""
        name: str = self.names[index]
        return name

    def read(self, index: int) -> Example:
        """Read image `index` from its shard."""
        size, offset = int(self.sizes[index]), int(self.offsets[index])
        tar = self.tars[int(self.shard[index])]
        data = self._read_at(tar, offset, size)
        if len(data) != size:
            raise DataError(
                f"{printable(tar)} is truncated: {printable(self.name(index))} should be at bytes "
                f"{offset} to {offset + size}"
            )
        return Example(data=data, label=self.label(index), name=self.name(index))

    def size(self, index: int) -> int:
        """Bytes of image `index`."""
        return int(self.sizes[index])

    def _read_at(self, tar: str, offset: int, size: int) -> bytes:
        if "://" in tar:
            return read_cached(tar, start=offset, end=offset + size)
        try:
            handle = self._kept_open(tar)
            if handle is not None:
                return os.pread(handle, size, offset)
            with Path(tar).open("rb", buffering=0) as file:
                return os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise DataError(f"cannot read {printable(tar)}: {error.strerror}") from error

    def _kept_open(self, tar: str) -> int | None:
        """Return the handle of a shard; None if too many are open, so that this one is opened for each image."""
        with self._lock:
            if tar not in self._open and len(self._open) < _MOST_OPEN:
                self._open[tar] = os.open(tar, os.O_RDONLY)
            return self._open.get(tar)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_open")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __del__(self) -> None:
        for handle in getattr(self, "_open", {}).values():
            os.close(handle)


def read_listing(place: str) -> dict[str, Any]:
    """Read and check shards.json at a folder or web address."""
    where = f"{place}/{LISTING}"
    data = read_remote(where) if "://" in place else Path(where).read_bytes()
    try:
        listing: dict[str, Any] = parse_json(data)
        assert isinstance(listing["classes"], list) and isinstance(listing["splits"], dict)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise DataError(f"{printable(where)} is not a listing of shards") from error
    return listing


def _listed(place: str, *, address: str, root: Path | None) -> dict[str, Source]:
    listing = read_listing(place)
    splits: dict[str, Source] = {}
    for split, shards in listing["splits"].items():
        indexes = []
        for shard in shards:
            for name in (shard["index"], shard["name"]):
                require_inside(str(name), place, listing=f"{place}/{LISTING}")
            where = f"{place}/{shard['index']}"
            data = read_remote(where) if "://" in place else require_path(Path(where)).read_bytes()
            indexes.append(read_index(data, name=where))
        splits[split] = ShardSource(
            [f"{place}/{shard['name']}" for shard in shards],
            shard=np.repeat(np.arange(len(shards)), [len(index.sizes) for index in indexes]),
            offsets=np.concatenate([index.offsets for index in indexes]),
            sizes=np.concatenate([index.sizes for index in indexes]),
            names=Strings(name for index in indexes for name in index.names),
            labels=_stacked([index.labels for index in indexes]),
            classes=listing["classes"],
            address=address,
            root=root,
        )
    return splits


def _walked(
    tars: list[str], *, address: str, root: Path | None, needs_labels: bool = True
) -> dict[str, Source]:
    by_split: dict[str, list[tuple[str, list[Member]]]] = {}
    for tar in tars:
        by_split.setdefault(_split_of(tar), []).append((tar, _walk(tar)))
    members = [member for group in by_split.values() for _, listed in group for member in listed]
    if not members:
        raise DataError(f"{printable(address)} contains no images")
    unlabelled = next(
        (member.name for member in members if not member.labels and not member.is_multi_label), None
    )
    if unlabelled and not needs_labels:
        order = [split for split in (ALL, "train", "val", "test") if split in by_split]
        return {split: _of_members(by_split[split], (), address=address, root=root) for split in order}
    if unlabelled:
        raise DataError(
            f"{printable(unlabelled)} in {printable(address)} has no label: each image needs "
            "a .cls or .json file with the same name"
        )
    names = _class_list(root)
    classes = names or sorted_classes(label for member in members for label in member.labels)
    order = [split for split in (ALL, "train", "val", "test") if split in by_split]
    return {split: _of_members(by_split[split], classes, address=address, root=root) for split in order}


def _of_members(
    group: list[tuple[str, list[Member]]], classes: Sequence[str], *, address: str, root: Path | None
) -> Source:
    members = [member for _, listed in group for member in listed]
    number = {name: index for index, name in enumerate(classes)}
    if not classes:
        members = [replace(member, labels=(), is_multi_label=False) for member in members]
    is_multi_label = any(member.is_multi_label for member in members)
    rows = [[_number(label, number, member.name) for label in member.labels] for member in members]
    return ShardSource(
        [tar for tar, _ in group],
        shard=np.repeat(np.arange(len(group)), [len(listed) for _, listed in group]),
        offsets=np.array([member.offset for member in members]),
        sizes=np.array([member.size for member in members]),
        names=Strings(member.name for member in members),
        labels=pack_labels(
            rows if is_multi_label else [row[0] if row else NO_LABEL for row in rows],
            is_multi_label=is_multi_label,
        ),
        classes=classes,
        address=address,
        root=root,
    )


def _number(label: str, number: dict[str, int], name: str) -> int:
    if label not in number and label.isdecimal() and int(label) < len(number):
        return int(label)  # .cls files contain numbers, the class list their names
    return class_number(label, number, where=name)


def _walk(tar: str) -> list[Member]:
    if "://" not in tar:
        path = Path(tar)
        with path.open("rb") as file:
            return walk_tar(file, name=tar, size=path.stat().st_size)
    system, path_there = remote_system(tar)
    try:
        with system.open(path_there, "rb", block_size=2**20) as file:
            return walk_tar(io.BufferedReader(file), name=tar, size=int(file.size))
    except FileNotFoundError as error:
        raise DataError(f"there is no file at {tar}") from error


def _split_of(tar: str) -> str:
    word = tar.rpartition("/")[2].lower().replace("_", "-").partition("-")[0].partition(".")[0]
    return SPLIT_NAMES.get(word, ALL)


def _class_list(root: Path | None) -> list[str] | None:
    if root is None:
        return None
    folder = root if root.is_dir() else root.parent
    file = folder / "classes.txt"
    if not file.is_file():
        return None
    return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _stacked(parts: list[Labels]) -> Labels:
    if not parts:
        return np.zeros(0, dtype=np.int32)
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    padded = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=NO_LABEL) for part in parts]
    return np.concatenate(padded)
