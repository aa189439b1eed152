"""Parts of remote files on this machine's disk: a cache with a limit, which all processes of the machine share.

A shard is read in blocks of `BLOCK_BYTES`: one request per block instead of one per picture. While a block is used,
the next ones are downloaded. Blocks that were used least recently are removed when the cache is full; its limit is
$VITRINE_CACHE_GB, 10 by default.
"""

import contextlib
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

from vitrine.errors import ConfigError
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.files import write_atomically
from vitrine.runtime.remote_store import read_remote, remote_stamp

BLOCK_BYTES = 8 * 2**20
DEFAULT_GB, LIMIT = 10.0, "VITRINE_CACHE_GB"
# Blocks that each process downloads ahead, at the same time.
_AHEAD = 2
# A process checks the size of the cache after this many seconds, or after it has written this fraction of the limit.
# So 16 processes exceed the limit by at most an eighth, plus the blocks being downloaded.
_LOOK_EVERY, _LOOK_AFTER = 5.0, 1 / 128
_last_look, _written = 0.0, 0


def read_cached(address: str, *, start: int, end: int) -> bytes:
    """Read bytes `start` to `end` of a file at an address, through the cache; a local file is read directly."""
    if address.startswith("file://"):
        return read_remote(address, start=start, end=end)
    size, stamp = _facts(address)
    if not stamp:  # without a version, a replaced file would go unnoticed
        return read_remote(address, start=start, end=end)
    first, last = start // BLOCK_BYTES, (max(end, start + 1) - 1) // BLOCK_BYTES
    data = b"".join(_block(address, number, stamp=stamp, size=size) for number in range(first, last + 1))
    for number in range(last + 1, min(last + 1 + _AHEAD, -(-size // BLOCK_BYTES))):
        if not _file(address, number, stamp).exists():
            _pool().submit(_block, address, number, stamp=stamp, size=size)
    offset = first * BLOCK_BYTES
    return data[start - offset : end - offset]


def _block(address: str, number: int, *, stamp: str, size: int) -> bytes:
    """Return a block from the disk, or download it; of several processes one downloads."""
    file = _file(address, number, stamp)
    with contextlib.suppress(FileNotFoundError):
        data = file.read_bytes()
        os.utime(file)
        return data
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        with contextlib.suppress(FileNotFoundError):
            return file.read_bytes()
        start = number * BLOCK_BYTES
        data = read_remote(address, start=start, end=min(start + BLOCK_BYTES, size))
        with write_atomically(file) as opened:
            opened.write(data)
    make_room(written=len(data))
    return data


def make_room(limit: int | None = None, *, written: int = 0, now: bool = False) -> None:
    """Remove the blocks used least recently until the rest fits the limit; this is not checked after every block."""
    global _last_look, _written  # noqa: PLW0603 (one clock and one counter per process)
    limit = limit_bytes() if limit is None else limit
    _written += written
    is_early = time.monotonic() - _last_look < _LOOK_EVERY and _written <= limit * _LOOK_AFTER
    if is_early and not now:
        return
    _last_look, _written = time.monotonic(), 0
    blocks = []
    for file in _folder().glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            blocks.append((status.st_mtime, status.st_size, file))
    total = sum(size for _, size, _ in blocks)
    for _, size, file in sorted(blocks):
        if total <= limit:
            return
        file.unlink(missing_ok=True)
        total -= size


def limit_bytes() -> int:
    """Return the limit of the cache in bytes."""
    text = os.environ.get(LIMIT, str(DEFAULT_GB))
    try:
        return int(float(text) * 1e9)
    except ValueError:
        raise ConfigError(f"{LIMIT} must be a number of gigabytes, got {text!r}") from None


@lru_cache(maxsize=4096)
def _facts(address: str) -> tuple[int, str]:
    """Return size and version of a file, asked once per process."""
    return remote_stamp(address)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AHEAD, thread_name_prefix="vitrine-blocks")


def _folder() -> Path:
    return cache_folder() / "blocks"


def _file(address: str, number: int, stamp: str) -> Path:
    key = hashlib.blake2b(f"{address}\0{stamp}\0{BLOCK_BYTES}".encode(), digest_size=16).hexdigest()
    return _folder() / key / f"{number:06d}"
