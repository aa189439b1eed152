"""Checksums of a file of weights.

SHA-256 says which file it is; it is written down for people and checked by `convert`. A CRC-32 of each tensor finds
damage several times as fast and tells where; every load checks it, on another thread, while the bytes are warm.
"""

import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from vitrine.errors import CheckpointError
from vitrine.runtime.files import sha256_of


class Verifier:
    """Compares the CRC-32 of each tensor that is read with what was written down."""

    def __init__(self, expected: Mapping[str, str], *, path: Path) -> None:
        self._expected, self._path = expected, path
        # One thread: zlib lets go of Python's lock, so it runs beside the reading.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checksum")
        self._running: list[tuple[str, Future[int]]] = []

    def see(self, name: str, data: memoryview) -> None:
        """Take note of a tensor's bytes; they must stay as they are until `finish`."""
        if name in self._expected:
            self._running.append((name, self._pool.submit(zlib.crc32, data)))

    def finish(self) -> None:
        """Wait for all sums and refuse the first tensor that is not the one that was written."""
        self._pool.shutdown(wait=True)
        for name, future in self._running:
            found = f"{future.result():08x}"
            if found != self._expected[name]:
                raise damaged(self._path, found=found, expected=self._expected[name], where=f" in {name}")
        self._running = []


def require_sha256(path: Path, expected: str) -> None:
    """Refuse a file that is not the one that was written."""
    found = sha256_of(path)
    if found != expected:
        raise damaged(path, found=found, expected=expected)


def damaged(path: Path, *, found: str, expected: str, where: str = "") -> CheckpointError:
    """Return the error of a file that has changed since it was saved."""
    return CheckpointError(
        f"{path} is not the file that was saved: its checksum{where} is {found[:12]}, its record says "
        f"{expected[:12]}; copy it again with its config.json"
    )
