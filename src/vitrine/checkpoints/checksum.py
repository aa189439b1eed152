"""SHA-256 of a file of weights, computed beside the reading so that it costs next to no time."""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from vitrine.errors import CheckpointError

CHUNK_BYTES = 4 << 20


def sha256_of(path: Path) -> str:
    """Read a file in pieces and return its SHA-256."""
    digest, buffer = hashlib.sha256(), bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


def begin(path: Path) -> Future[str]:
    """Start to compute a file's SHA-256 on another thread; hashing lets go of Python's lock."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checksum")
    future = pool.submit(sha256_of, path)
    pool.shutdown(wait=False)
    return future


def require(future: Future[str], expected: str, *, path: Path) -> None:
    """Wait for the sum and refuse a file that is not the one that was written."""
    found = future.result()
    if found != expected:
        raise CheckpointError(
            f"{path} is not the file that was saved: its SHA-256 is {found[:12]}..., its record says "
            f"{expected[:12]}...; copy it again with its config.json"
        )
