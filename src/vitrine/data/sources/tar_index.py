"""The position of each image in a tar shard, for random access.

Shards follow WebDataset's layout: the files of one example share a name up to the first dot, `000017.jpg` and
`000017.cls`. Shards that Vitrine wrote have an index; others are indexed by reading their headers.
"""

import io
import json
import tarfile
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.file_kind import IMAGE_SUFFIXES
from vitrine.data.sources.file_list import Strings
from vitrine.data.sources.source import Labels
from vitrine.errors import DataError
from vitrine.runtime.files import parse_json
from vitrine.spelling import printable

BLOCK = 512
LABEL_KEYS = ("labels", "label", "cls", "class", "class_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class TarIndex:
    """Offset and size of each image in one shard, (N,) each, its name, and its label as stored."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    names: Strings
    labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One image of a tar: its position, its name, and its labels as text."""

    offset: int
    size: int
    name: str
    labels: tuple[str, ...]
    is_multi_label: bool = False


def walk_tar(file: IO[bytes], *, name: str, size: int) -> list[Member]:
    """List the images of a tar with their labels by its headers; a truncated tar is refused."""
    images: dict[str, tuple[int, int, str]] = {}
    labels: dict[str, tuple[tuple[str, ...], bool]] = {}
    end = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                end = member.offset_data + -(-member.size // BLOCK) * BLOCK
                if member.offset_data + member.size > size:
                    break
                if not member.isfile():
                    continue
                key, suffix = _key_and_suffix(member.name)
                if suffix in IMAGE_SUFFIXES:
                    images[key] = (member.offset_data, member.size, member.name)
                elif suffix in (".cls", ".json", ".txt", ".label") and member.size < 2**20:
                    content = tar.extractfile(member)
                    assert content is not None
                    stored = _labels_in(content.read(), suffix=suffix, where=f"{member.name} in {name}")
                    if stored is not None:
                        labels.setdefault(key, stored)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{printable(name)} is truncated or not a tar: {error}") from error
    # A complete tar ends with two empty blocks; one that ends with its last member may have lost some.
    if end + BLOCK > size:
        raise DataError(
            f"{printable(name)} is truncated: it ends at byte {size}, before the end mark at {end}"
        )
    return [
        Member(
            offset=o,
            size=s,
            name=n,
            labels=labels.get(key, ((), False))[0],
            is_multi_label=labels.get(key, ((), False))[1],
        )
        for key, (o, s, n) in images.items()
    ]


def write_index(file: IO[bytes], index: TarIndex) -> None:
    """Write an index as plain arrays."""
    names_text = "\0".join(index.names).encode("utf-8", "surrogateescape")
    np.savez(
        file,
        offsets=index.offsets,
        sizes=index.sizes,
        labels=index.labels,
        names=np.frombuffer(names_text, dtype=np.uint8),
    )


def read_index(data: bytes, *, name: str) -> TarIndex:
    """Read an index that `write_index` wrote."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            names_text = arrays["names"].tobytes().decode("utf-8", "surrogateescape")
            index = TarIndex(
                offsets=arrays["offsets"],
                sizes=arrays["sizes"],
                labels=arrays["labels"],
                names=Strings(names_text.split("\0") if names_text else ()),
            )
    except Exception as error:  # a damaged archive may raise any exception
        raise DataError(f"{printable(name)} is not an index of shards: {error}") from error
    if not len(index.offsets) == len(index.sizes) == len(index.labels) == len(index.names):
        raise DataError(
            f"{printable(name)} is damaged: its columns differ in length; create the shards again"
        )
    return index


def _key_and_suffix(name: str) -> tuple[str, str]:
    folder, slash, file = name.rpartition("/")
    stem, dot, rest = file.partition(".")
    # `a.b.jpg` is part `b.jpg` of example `a`; the last extension tells the kind of part.
    return folder + slash + stem, (dot + rest.rpartition(".")[2]).lower()


def _labels_in(data: bytes, *, suffix: str, where: str) -> tuple[tuple[str, ...], bool] | None:
    text = data.decode("utf-8", "replace").strip()
    if suffix != ".json":
        return ((text,), False) if suffix in (".cls", ".label") else None
    try:
        content: Any = parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{printable(where)} is not JSON: {error.msg}") from error
    if not isinstance(content, dict):
        return ((str(content),), False)
    for key in LABEL_KEYS:
        if key in content:
            value = content[key]
            is_list = isinstance(value, list)
            return (tuple(str(word) for word in value) if is_list else (str(value),), is_list)
    return None
