"""Read every file of a source once, in parallel, and keep what was learnt in the cache, outside the data set.

Per example: a hash of its bytes, a grey thumbnail, its colours, its size and format, or the reason why it cannot be
decoded. About 1,100 bytes per image, nearly all of them thumbnails, which stay in a file on disk.
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

from vitrine.data.auditing.fingerprints import (
    COLOUR_SIDE,
    HASH_BYTES,
    THUMBNAIL_SIDE,
    colour_cells,
    content_hash,
    grey_thumbnail,
)
from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.image_file import ImageFacts, read_facts
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import DataError, ImageError, ImageProblem
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.files import move_into_place, size_in_words, write_atomically
from vitrine.runtime.progress import track
from vitrine.runtime.threads import in_order
from vitrine.spelling import printable

# Changes with the stored fields and with the way an image becomes a thumbnail.
_VERSION = 3
_THUMBNAILS = "thumbnails.npy"
_RECORD = "survey.json"
# Exceptions that a damaged file of the cache raises.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
# Large JPEGs are decoded at a fraction of their size: every byte is still read, so damage is still found.
_DECODED_SIDE = 2 * THUMBNAIL_SIDE
# Bytes of a subset's thumbnails that are held in memory; more go to a file, this many rows at a time.
_MOST_IN_MEMORY, _ROWS_AT_ONCE = 2**26, 2**14
# Images of more pixels than this are decoded one at a time, whatever the number of workers.
_LARGE_PIXELS = 16_000_000


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why an example cannot be decoded: the kind of problem, and a sentence that names the file."""

    problem: ImageProblem
    detail: str


@dataclass(frozen=True, kw_only=True)
class ImageSurvey:
    """Facts about all N examples of a source, in its order."""

    hashes: NDArray[np.uint8]  # (N, 16), zeros for files that cannot be read
    thumbnails: NDArray[np.uint8]  # (N, 32, 32), zeros for images that cannot be decoded
    colours: NDArray[
        np.int8
    ]  # (N, 4, 4, 2) Cb and Cr, zeros for grey images and those that cannot be decoded
    kinds: tuple[ImageFacts, ...]  # every combination that occurs, sizes set to 0
    kind_of: NDArray[np.int32]  # (N,) index into kinds, -1 for images that cannot be decoded
    sizes: NDArray[np.int32]  # (N, 2) height and width
    unreadable: dict[int, Unreadable]  # by index, why an example cannot be decoded

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True)
class _Facts:
    hash: bytes
    facts: ImageFacts | None = None
    thumbnail: NDArray[np.uint8] | None = None
    colours: NDArray[np.int8] | None = None
    failure: Unreadable | None = None


def survey_images(
    source: Source, *, num_workers: int = 0, is_cached: bool = True, what: str = "Reading images"
) -> ImageSurvey:
    """Read all examples with `num_workers` threads (0: one per core), or load an earlier survey from the cache.

    An earlier survey is valid while names, sizes, labels and modification times of all files are the same.
    """
    folder = cache_folder() / "surveys" / _key(source) if is_cached else None
    if folder is not None and (earlier := _recall(folder)) is not None:
        return earlier
    if isinstance(source, Subset) and is_cached:
        # Subsets share the survey of the whole set, so that `check` and every split read a file once.
        whole = _recall(cache_folder() / "surveys" / _key(source.source))
        if whole is None and 2 * len(source) >= len(source.source):
            whole = survey_images(source.source, num_workers=num_workers, what=what)
        if whole is not None:
            return _part(whole, source.indices)
    if folder is not None and not _can_write(folder):
        folder = None
    # A folder of its own: another process that reads the same set at the same time must not truncate our file.
    # Without a cache the file is unlinked while it is mapped, and its space is freed with the last reference.
    with tempfile.TemporaryDirectory(prefix="vitrine-", dir=folder) as temporary:
        survey = _read(source, Path(temporary) / _THUMBNAILS, num_workers=num_workers, what=what)
        if folder is not None:
            _store(survey, Path(temporary) / _THUMBNAILS, folder)
    return survey


def _read(source: Source, file: Path, *, num_workers: int, what: str) -> ImageSurvey:
    count = len(source)
    thumbnails = np.lib.format.open_memmap(
        file, mode="w+", dtype=np.uint8, shape=(count, THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    )
    with file.open("r+b") as opened:
        _take_room(opened)
    hashes = np.zeros((count, HASH_BYTES), dtype=np.uint8)
    colours = np.zeros((count, COLOUR_SIDE, COLOUR_SIDE, 2), dtype=np.int8)
    kind_of = np.full(count, -1, dtype=np.int32)
    sizes = np.zeros((count, 2), dtype=np.int32)
    kinds: dict[ImageFacts, int] = {}
    unreadable: dict[int, Unreadable] = {}
    one_large = threading.Lock()
    facts = in_order(lambda index: _read_one(source, index, one_large), range(count), num_workers=num_workers)
    for index, one in enumerate(track(facts, what, total=count)):
        hashes[index] = np.frombuffer(one.hash, dtype=np.uint8)
        if one.facts is None or one.thumbnail is None or one.colours is None:
            assert one.failure is not None
            unreadable[index] = one.failure
            continue
        thumbnails[index] = one.thumbnail
        colours[index] = one.colours
        sizes[index] = one.facts.height, one.facts.width
        kind_of[index] = kinds.setdefault(_without_size(one.facts), len(kinds))
    thumbnails.flush()
    return ImageSurvey(
        hashes=hashes,
        thumbnails=thumbnails,
        colours=colours,
        kinds=tuple(kinds),
        kind_of=kind_of,
        sizes=sizes,
        unreadable=unreadable,
    )


def _read_one(source: Source, index: int, one_large: threading.Lock) -> _Facts:
    name = source.name(index)
    digest = bytes(HASH_BYTES)
    try:
        data = source.read(index).data
        digest = content_hash(data)
        facts = read_facts(data, name=name)
        is_large = facts.height * facts.width > _LARGE_PIXELS
        with one_large if is_large else contextlib.nullcontext():
            pixels = decode(data, name=name, min_size=(_DECODED_SIDE, _DECODED_SIDE))
            return _Facts(digest, facts=facts, thumbnail=grey_thumbnail(pixels), colours=colour_cells(pixels))
    except DataError as error:
        problem = error.kind if isinstance(error, ImageError) else "unreadable"
        return _Facts(digest, failure=Unreadable(problem, str(error)))
    except Exception as error:
        # Decoders raise exceptions of any kind on hostile files; the scan reports them and continues.
        detail = f"{printable(name)} is a damaged file: {type(error).__name__}: {error}"
        return _Facts(digest, failure=Unreadable("damaged", detail))


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
    """Yield the files of the examples, or the files that contain them."""
    if len(source) and source.path(0) is None and source.root is not None:
        yield from sorted(source.root.iterdir()) if source.root.is_dir() else [source.root]
        return
    for index in range(len(source)):
        path = source.path(index)
        if path is not None:
            yield path


def _recall(folder: Path) -> ImageSurvey | None:
    if not (folder / _RECORD).exists():
        return None
    try:
        return _load(folder)
    except _DAMAGE:  # the images are read again
        return None


def _part(whole: ImageSurvey, indices: NDArray[np.uint32]) -> ImageSurvey:
    places = {int(place): number for number, place in enumerate(indices)}
    return ImageSurvey(
        hashes=whole.hashes[indices],
        thumbnails=_rows_of(whole.thumbnails, indices),
        colours=whole.colours[indices],
        kinds=whole.kinds,
        kind_of=whole.kind_of[indices],
        sizes=whole.sizes[indices],
        unreadable={places[index]: one for index, one in whole.unreadable.items() if index in places},
    )


def _rows_of(thumbnails: NDArray[np.uint8], indices: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Choose rows; many of them are written to an unlinked file that stays mapped instead of to memory."""
    shape = (len(indices), *thumbnails.shape[1:])
    if math.prod(shape) <= _MOST_IN_MEMORY:
        return thumbnails[indices]
    place = cache_folder() / "surveys"
    with tempfile.TemporaryFile(dir=place if _can_write(place) else None) as file:
        file.truncate(math.prod(shape))
        _take_room(file)
        rows = np.memmap(file, dtype=np.uint8, mode="r+", shape=shape)
    for start in range(0, len(indices), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        rows[part] = thumbnails[indices[part]]
    return rows


def _take_room(file: IO[bytes]) -> None:
    """Report a full disk now: a mapped page without disk space would kill the process without a message."""
    size = os.fstat(file.fileno()).st_size
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        # Any other error: the file system cannot reserve space.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(
                f"no space for {size_in_words(size)} of thumbnails in {cache_folder()}: {error.strerror}; "
                "free some space, or set VITRINE_CACHE to another folder"
            ) from None


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _store(survey: ImageSurvey, thumbnails: Path, folder: Path) -> None:
    move_into_place(thumbnails, folder / _THUMBNAILS)
    with write_atomically(folder / "arrays.npz") as file:
        np.savez(
            file, hashes=survey.hashes, colours=survey.colours, kind_of=survey.kind_of, sizes=survey.sizes
        )
    # Written last: where it exists, the survey is complete.
    with write_atomically(folder / _RECORD, mode="w") as file:
        kinds = [asdict(kind) for kind in survey.kinds]
        unreadable = {index: asdict(one) for index, one in survey.unreadable.items()}
        json.dump({"kinds": kinds, "unreadable": unreadable}, file)


def _load(folder: Path) -> ImageSurvey:
    stored = json.loads((folder / _RECORD).read_text(encoding="utf-8", errors="surrogateescape"))
    with np.load(folder / "arrays.npz") as arrays:
        return ImageSurvey(
            hashes=arrays["hashes"],
            thumbnails=np.load(folder / _THUMBNAILS, mmap_mode="r"),
            colours=arrays["colours"],
            kinds=tuple(ImageFacts(**kind) for kind in stored["kinds"]),
            kind_of=arrays["kind_of"],
            sizes=arrays["sizes"],
            unreadable={int(index): Unreadable(**one) for index, one in stored["unreadable"].items()},
        )
