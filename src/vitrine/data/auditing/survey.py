"""Read every file of a source once, in parallel, and remember what was found, outside the data set.

For each example: a hash of its bytes, a grey thumbnail, its size and kind, or the reason why it cannot be
decoded. About 1,100 bytes an image, nearly all of them thumbnails, which stay in a file on disk.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from vitrine.data.auditing.fingerprints import HASH_BYTES, THUMBNAIL_SIDE, content_hash, grey_thumbnail
from vitrine.data.decoding.decode import ImageFacts, decode, read_facts
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import DataError
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.files import move_into_place, size_in_words, write_atomically
from vitrine.runtime.progress import track
from vitrine.runtime.threads import in_order
from vitrine.spelling import printable

# Changes whenever what is stored, or how an image becomes a thumbnail, changes.
_VERSION = 1
_THUMBNAILS = "thumbnails.npy"
# What a damaged file of the cache raises.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
# Large JPEGs are decoded at a part of their size: every byte is still gone through, so damage is still found.
_DECODED_SIDE = 2 * THUMBNAIL_SIDE
# Thumbnails of a part of a set that are held in memory, in bytes, and rows that are copied at once beyond that.
_MOST_IN_MEMORY, _ROWS_AT_ONCE = 2**26, 2**14
# Images of more pixels than this are decoded one at a time, whatever the number of workers.
_LARGE_PIXELS = 16_000_000


@dataclass(frozen=True, kw_only=True)
class ImageSurvey:
    """What reading all N examples of a source gave, in its order."""

    hashes: NDArray[np.uint8]  # (N, 16), zeros where nothing could be read
    thumbnails: NDArray[np.uint8]  # (N, 32, 32), zeros where nothing could be decoded
    kinds: tuple[ImageFacts, ...]  # every kind of image that occurs, sizes left at 0
    kind_of: NDArray[np.int32]  # (N,) index into kinds, -1 for what cannot be decoded
    sizes: NDArray[np.int32]  # (N, 2) height and width
    reasons: dict[int, str]  # why an example cannot be decoded

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True)
class _Reading:
    hash: bytes
    facts: ImageFacts | None = None
    thumbnail: NDArray[np.uint8] | None = None
    reason: str = ""


def survey_images(
    source: Source, *, num_workers: int = 0, is_cached: bool = True, what: str = "Reading images"
) -> ImageSurvey:
    """Read all examples with `num_workers` threads (0: one a processor), or recall an earlier reading.

    An earlier reading counts while names, sizes, labels and times of change of all files are the same.
    """
    folder = cache_folder() / "readings" / _key(source) if is_cached else None
    if folder is not None and (earlier := _recall(folder)) is not None:
        return earlier
    if isinstance(source, Subset) and is_cached:
        # Parts share the reading of the whole, so that `check` and any split of ours read a file once.
        whole = _recall(cache_folder() / "readings" / _key(source.source))
        if whole is None and 2 * len(source) >= len(source.source):
            whole = survey_images(source.source, num_workers=num_workers, what=what)
        if whole is not None:
            return _part(whole, source.indices)
    if folder is not None and not _can_write(folder):
        folder = None
    # In a place of its own: another process that reads the same set at the same time must not empty our file. Where
    # nothing is kept, the file lives on while it is mapped, and goes away with the last use of it.
    with tempfile.TemporaryDirectory(prefix="vitrine-", dir=folder) as temporary:
        readings = _read(source, Path(temporary) / _THUMBNAILS, num_workers=num_workers, what=what)
        if folder is not None:
            _store(readings, Path(temporary) / _THUMBNAILS, folder)
    return readings


def _read(source: Source, file: Path, *, num_workers: int, what: str) -> ImageSurvey:
    count = len(source)
    thumbnails = np.lib.format.open_memmap(
        file, mode="w+", dtype=np.uint8, shape=(count, THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    )
    with file.open("r+b") as opened:
        _take_room(opened)
    hashes = np.zeros((count, HASH_BYTES), dtype=np.uint8)
    kind_of = np.full(count, -1, dtype=np.int32)
    sizes = np.zeros((count, 2), dtype=np.int32)
    kinds: dict[ImageFacts, int] = {}
    reasons: dict[int, str] = {}
    one_large = threading.Lock()
    found = in_order(lambda index: _read_one(source, index, one_large), range(count), num_workers=num_workers)
    for index, reading in enumerate(track(found, what, total=count)):
        hashes[index] = np.frombuffer(reading.hash, dtype=np.uint8)
        if reading.facts is None or reading.thumbnail is None:
            reasons[index] = reading.reason
            continue
        thumbnails[index] = reading.thumbnail
        sizes[index] = reading.facts.height, reading.facts.width
        kind_of[index] = kinds.setdefault(_without_size(reading.facts), len(kinds))
    thumbnails.flush()
    return ImageSurvey(
        hashes=hashes,
        thumbnails=thumbnails,
        kinds=tuple(kinds),
        kind_of=kind_of,
        sizes=sizes,
        reasons=reasons,
    )


def _read_one(source: Source, index: int, one_large: threading.Lock) -> _Reading:
    name = source.name(index)
    digest = bytes(HASH_BYTES)
    try:
        data = source.read(index).data
        digest = content_hash(data)
        facts = read_facts(data, name=name)
        is_large = facts.height * facts.width > _LARGE_PIXELS
        with one_large if is_large else contextlib.nullcontext():
            pixels = decode(data, name=name, min_size=(_DECODED_SIDE, _DECODED_SIDE))
            return _Reading(digest, facts=facts, thumbnail=grey_thumbnail(pixels))
    except DataError as error:
        return _Reading(digest, reason=str(error))
    except Exception as error:
        # Decoders raise anything at all on hostile files; the scan names it and goes on.
        return _Reading(
            digest, reason=f"{printable(name)} is a damaged file: {type(error).__name__}: {error}"
        )


def _without_size(facts: ImageFacts) -> ImageFacts:
    return ImageFacts(**{**asdict(facts), "height": 0, "width": 0})


def _key(source: Source) -> str:
    digest = hashlib.blake2b(f"{_VERSION} {source.fingerprint()}".encode(), digest_size=16)
    for path in _files(source):
        with contextlib.suppress(OSError):
            facts = path.stat()
            digest.update(f"{facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_size} ".encode())
    return digest.hexdigest()


def _files(source: Source) -> Iterator[Path]:
    """Yield the files that the examples are, or else those that they are packed into."""
    if len(source) and source.path(0) is None and source.root is not None:
        yield from sorted(source.root.iterdir()) if source.root.is_dir() else [source.root]
        return
    for index in range(len(source)):
        path = source.path(index)
        if path is not None:
            yield path


def _recall(folder: Path) -> ImageSurvey | None:
    if not (folder / "readings.json").exists():
        return None
    try:
        return _load(folder)
    except _DAMAGE:  # read anew
        return None


def _part(whole: ImageSurvey, indices: NDArray[np.uint32]) -> ImageSurvey:
    places = {int(place): number for number, place in enumerate(indices)}
    return ImageSurvey(
        hashes=whole.hashes[indices],
        thumbnails=_rows_of(whole.thumbnails, indices),
        kinds=whole.kinds,
        kind_of=whole.kind_of[indices],
        sizes=whole.sizes[indices],
        reasons={places[index]: reason for index, reason in whole.reasons.items() if index in places},
    )


def _rows_of(thumbnails: NDArray[np.uint8], indices: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Choose rows; many of them go into a file without a name, which lives while it is mapped, not into memory."""
    shape = (len(indices), *thumbnails.shape[1:])
    if math.prod(shape) <= _MOST_IN_MEMORY:
        return thumbnails[indices]
    place = cache_folder() / "readings"
    with tempfile.TemporaryFile(dir=place if _can_write(place) else None) as file:
        file.truncate(math.prod(shape))
        _take_room(file)
        rows = np.memmap(file, dtype=np.uint8, mode="r+", shape=shape)
    for start in range(0, len(indices), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        rows[part] = thumbnails[indices[part]]
    return rows


def _take_room(file: IO[bytes]) -> None:
    """Let a full disk be told now: a page of a mapped file that finds no room ends the process without a word."""
    size = os.fstat(file.fileno()).st_size
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        # Others: a file system that cannot promise.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"there is no room for {size_in_words(size)} of thumbnails in {cache_folder()}: {error.strerror}; "
                "make room, or name another place with VITRINE_CACHE"
            ) from None


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _store(readings: ImageSurvey, thumbnails: Path, folder: Path) -> None:
    move_into_place(thumbnails, folder / _THUMBNAILS)
    with write_atomically(folder / "arrays.npz") as file:
        np.savez(file, hashes=readings.hashes, kind_of=readings.kind_of, sizes=readings.sizes)
    # Written last: where it is, everything is.
    with write_atomically(folder / "readings.json", mode="w") as file:
        json.dump({"kinds": [asdict(kind) for kind in readings.kinds], "reasons": readings.reasons}, file)


def _load(folder: Path) -> ImageSurvey:
    words = json.loads((folder / "readings.json").read_text(encoding="utf-8", errors="surrogateescape"))
    with np.load(folder / "arrays.npz") as arrays:
        return ImageSurvey(
            hashes=arrays["hashes"],
            thumbnails=np.load(folder / _THUMBNAILS, mmap_mode="r"),
            kinds=tuple(ImageFacts(**kind) for kind in words["kinds"]),
            kind_of=arrays["kind_of"],
            sizes=arrays["sizes"],
            reasons={int(index): reason for index, reason in words["reasons"].items()},
        )
