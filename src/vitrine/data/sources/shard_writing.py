"""Write a data set as indexed tar shards, and verify such shards.

Each `train-00000.tar` (WebDataset's layout) has an index beside it, and one `shards.json` lists them all with their
SHA-256. Each file is written atomically: an interrupted run continues with the next one.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from vitrine.data.decoding.file_kind import IMAGE_SUFFIXES
from vitrine.data.sources.file_list import Strings
from vitrine.data.sources.shards import LISTING, read_listing
from vitrine.data.sources.source import Example, Source
from vitrine.data.sources.tar_index import TarIndex, read_index, write_index
from vitrine.errors import ConfigError, DataError, TryOption
from vitrine.runtime.files import json_text, sha256_of, write_atomically
from vitrine.runtime.output_folder import is_inside
from vitrine.runtime.progress import track
from vitrine.spelling import printable

FORMAT = 1
DEFAULT_SHARD_BYTES = 256 * 2**20
# A tar member's header and padding: a little over a kilobyte for the image and its label.
_MEMBER_OVERHEAD = 2048


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard as shards.json lists it."""

    name: str
    index: str
    count: int
    bytes: int
    sha256: str
    index_sha256: str


@dataclass(frozen=True, kw_only=True)
class ShardProblem:
    """A problem with one shard."""

    path: str
    problem: str
    detail: str


def write_shards(
    splits: Mapping[str, Source],
    out: Path,
    *,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
) -> dict[str, list[Shard]]:
    """Write every split as shards of about `shard_bytes` into `out`; complete ones already there are kept."""
    if shard_bytes < 1:
        raise ConfigError(f"the size of a shard must be above 0, got {shard_bytes} bytes")
    first = next(iter(splits.values()))
    for source in splits.values():
        if source.root is not None and is_inside(out, source.root):
            raise ConfigError(
                f"{out} is inside the data set {source.root}, where nothing is ever written; choose another folder",
                option="out",
            )
    plan = {split: _plan(source, shard_bytes) for split, source in splits.items()}
    fingerprint = hashlib.sha256(
        json.dumps([shard_bytes, [(name, source.fingerprint()) for name, source in splits.items()]]).encode()
    ).hexdigest()[:32]
    _claim(out, fingerprint, overwrite=overwrite)
    todo = [(split, number) for split in splits for number in range(len(plan[split]))]
    written: dict[str, list[Shard]] = {split: [] for split in splits}
    for split, number in track(todo, f"Writing shards to {out}"):
        start, stop = plan[split][number]
        written[split].append(
            _shard(splits[split], out, name=f"{split}-{number:05d}", start=start, stop=stop)
        )
    listing = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "classes": list(first.classes),
        "splits": {split: [asdict(shard) for shard in shards] for split, shards in written.items()},
    }
    with write_atomically(out / "classes.txt", mode="w") as file:  # for other readers of WebDataset's layout
        file.writelines(f"{name}\n" for name in first.classes)
    with write_atomically(out / LISTING, mode="w") as file:
        file.write(json_text(listing, indent=1))
    return written


def verify_shards(folder: Path) -> list[ShardProblem]:
    """Compare every shard and index with its checksum and with each other; return the problems."""
    problems: list[ShardProblem] = []
    listing = read_listing(str(folder))
    shards = [Shard(**shard) for shards in listing["splits"].values() for shard in shards]
    for shard in track(shards, f"Verifying {folder}"):
        problems.extend(_problems(folder, shard))
    return problems


def _problems(folder: Path, shard: Shard) -> list[ShardProblem]:
    problems = []
    for name, wanted in ((shard.name, shard.sha256), (shard.index, shard.index_sha256)):
        path = folder / name
        if not path.is_file():
            problems.append(ShardProblem(path=name, problem="missing", detail="listed in shards.json"))
        elif name == shard.name and path.stat().st_size != shard.bytes:
            detail = f"{path.stat().st_size} bytes instead of {shard.bytes}"
            kind = "truncated" if path.stat().st_size < shard.bytes else "changed"
            problems.append(ShardProblem(path=name, problem=kind, detail=detail))
        elif sha256_of(path) != wanted:
            problems.append(
                ShardProblem(path=name, problem="changed", detail="SHA-256 differs from shards.json")
            )
    if not problems:
        index = read_index((folder / shard.index).read_bytes(), name=shard.index)
        if len(index.sizes) != shard.count or int((index.offsets + index.sizes).max()) > shard.bytes:
            problems.append(
                ShardProblem(path=shard.index, problem="wrong index", detail="it does not match its shard")
            )
    return problems


def _plan(source: Source, shard_bytes: int) -> list[tuple[int, int]]:
    """Return the range of images of each shard."""
    ranges, start, filled = [], 0, 0
    for index in range(len(source)):
        size = source.size(index) + _MEMBER_OVERHEAD
        if index > start and filled + size > shard_bytes:
            ranges.append((start, index))
            start, filled = index, 0
        filled += size
    return [*ranges, (start, len(source))]


def _claim(out: Path, fingerprint: str, *, overwrite: bool) -> None:
    """Accept a folder that is empty or contains shards of the same set; refuse any other without `overwrite`."""
    mark = out / ".shards-of"
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a folder", option="out")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        known = mark.read_text(encoding="utf-8") if mark.is_file() else None
        if known != fingerprint:
            raise ConfigError(
                f"{out} is not empty and does not contain shards of this set as it is now; choose a new folder",
                option="out",
                advice=[TryOption("overwrite", "to replace its shards", True)],
            )
    if overwrite and out.is_dir():
        for old in [*out.glob("*-[0-9]*.tar"), *out.glob("*-[0-9]*.npz"), *out.glob(LISTING)]:
            old.unlink()
    with write_atomically(mark, mode="w") as file:
        file.write(fingerprint)


def _shard(source: Source, out: Path, *, name: str, start: int, stop: int) -> Shard:
    tar, index = out / f"{name}.tar", out / f"{name}.npz"
    # The index is written last: where it exists, its shard is complete.
    if not (tar.is_file() and index.is_file()):
        with write_atomically(tar) as file:
            table = _write_tar(file, source, start=start, stop=stop)
        with write_atomically(index) as file:
            write_index(file, table)
    return Shard(
        name=tar.name,
        index=index.name,
        count=stop - start,
        bytes=tar.stat().st_size,
        sha256=sha256_of(tar),
        index_sha256=sha256_of(index),
    )


def _write_tar(file: IO[bytes], source: Source, *, start: int, stop: int) -> TarIndex:
    offsets, sizes, names = [], [], []
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for index in range(start, stop):
            example = source.read(index)
            data, suffix = _encoded(example)
            key = f"{index:09d}"
            _add(tar, key + suffix, data)
            offsets.append(tar.offset - _padded(len(data)))
            sizes.append(len(data))
            names.append(example.name)
            if source.is_labelled:
                label_suffix, label = _label_file(example, source.classes)
                _add(tar, key + label_suffix, label)
    return TarIndex(
        offsets=np.array(offsets, dtype=np.int64),
        sizes=np.array(sizes, dtype=np.int64),
        names=Strings(names),
        labels=source.labels[start:stop],
    )


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    # Only name and size: the same set gives the same bytes, whoever writes it and when.
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _encoded(example: Example) -> tuple[bytes, str]:
    """Return an encoded file as it is, with its extension; raw pixels as PNG, which is lossless."""
    if isinstance(example.data, bytes):
        suffix = Path(example.name).suffix.lower()
        return example.data, suffix if suffix in IMAGE_SUFFIXES else _suffix_of(example.data)
    stream = io.BytesIO()
    pixels = example.data[:, :, 0] if example.data.shape[2] == 1 else example.data
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue(), ".png"


def _suffix_of(data: bytes) -> str:
    starts = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp"}
    return next((suffix for start, suffix in starts.items() if data.startswith(start)), ".tif")


def _label_file(example: Example, classes: tuple[str, ...]) -> tuple[str, bytes]:
    if isinstance(example.label, tuple):
        content: Any = {"labels": [classes[number] for number in example.label]}
        return ".json", json_text(content).encode()
    if example.label < 0:
        raise DataError(f"{printable(example.name)} has no label; shards need labelled images")
    return ".cls", str(example.label).encode()
