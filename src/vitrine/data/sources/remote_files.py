"""Images below an address of fsspec: s3://bucket/photos, gs://, az://, memory://; one folder per class, or loose.

Listing a folder of an object store takes one request per thousand files, and reading one request per picture: many
processes read at once. For millions of small files, shards cost far fewer requests.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Literal

import numpy as np

from vitrine.data.decoding.file_kind import IMAGE_SUFFIXES
from vitrine.data.sources.file_list import Strings
from vitrine.data.sources.source import ALL, NO_LABEL, SPLIT_NAMES, Example, Labels, Source
from vitrine.errors import DataError
from vitrine.runtime.places import is_remote
from vitrine.runtime.remote_store import names_at, read_remote, walk_remote
from vitrine.spelling import printable

Content = Literal["shards", "parquet", "images"]
_WEB = ("http://", "https://")


@lru_cache(maxsize=32)
def content_of(address: str) -> Content:
    """Determine what is at an address, by its name or the names in it; the web cannot be listed and has shards."""
    place = address.partition("?")[0].rstrip("/")
    suffix = PurePosixPath(place).suffix.lower()
    if suffix == ".tar":
        return "shards"
    if suffix == ".parquet":
        return "parquet"
    if place.startswith(_WEB):
        return "shards"
    suffixes = {PurePosixPath(name).suffix.lower() for name in names_at(place)}
    if ".tar" in suffixes:
        return "shards"
    return "parquet" if ".parquet" in suffixes else "images"


def recognises(address: str) -> bool:
    """Accept addresses with images below them."""
    return is_remote(address) and content_of(address) == "images"


def open_all(address: str) -> dict[str, Source]:
    """Open images in class folders, below split folders or directly at the address."""
    names, sizes = _listed(address)
    parts = [PurePosixPath(name).parts for name in names]
    first = {part[0].lower() for part in parts if len(part) > 1}
    has_splits = bool(first) and first <= SPLIT_NAMES.keys()
    depth = 1 if has_splits else 0
    loose = next((name for name, part in zip(names, parts, strict=True) if len(part) < depth + 2), None)
    if loose is not None:
        raise DataError(
            f"{printable(address)} contains {printable(loose)}, which is in no class folder; put the images of each "
            "class below a prefix with its name"
        )
    classes = sorted({part[depth] for part in parts})
    number = {name: index for index, name in enumerate(classes)}
    splits = np.array([SPLIT_NAMES[part[0].lower()] if has_splits else ALL for part in parts])
    labels = np.array([number[part[depth]] for part in parts], dtype=np.int32)
    return {
        split: RemoteFiles(
            address,
            Strings(names[row] for row in np.flatnonzero(splits == split)),
            sizes[splits == split],
            labels=labels[splits == split],
            classes=classes,
        )
        for split in (ALL, "train", "val", "test")
        if (splits == split).any()
    }


def open_loose(address: str) -> Source:
    """List every image below an address, without labels."""
    names, sizes = _listed(address)
    return RemoteFiles(
        address, names, sizes, labels=np.full(len(names), NO_LABEL, dtype=np.int32), classes=()
    )


class RemoteFiles(Source):
    """Images that are files of their own below an address."""

    def __init__(
        self, address: str, names: Strings, sizes: np.ndarray, *, labels: Labels, classes: Sequence[str]
    ) -> None:
        self.address, self.names, self.sizes = address, names, sizes
        self.labels, self.classes = labels, tuple(classes)

    def name(self, index: int) -> str:
        """Return the address of image `index`."""
        return f"{self.address.rstrip('/')}/{self.names[index]}"

    def read(self, index: int) -> Example:
        """Read image `index`: one request."""
        name = self.name(index)
        return Example(data=read_remote(name), label=self.label(index), name=name)

    def size(self, index: int) -> int:
        """Bytes of image `index`, as they were listed."""
        return int(self.sizes[index])


def _listed(address: str) -> tuple[Strings, np.ndarray]:
    images = _images(walk_remote(address))
    sizes: list[int] = []

    def names() -> Iterator[str]:
        for name, size in images:
            sizes.append(size)
            yield name

    listed = Strings(names())
    if not len(listed):
        raise DataError(f"there are no images below {printable(address)}")
    return listed, np.array(sizes, dtype=np.int64)


def _images(files: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Keep images that are not hidden, in a fixed order."""
    kept = [
        (name, size)
        for name, size in files
        if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES
        and not any(part.startswith(".") for part in PurePosixPath(name).parts)
    ]
    return iter(sorted(kept))
