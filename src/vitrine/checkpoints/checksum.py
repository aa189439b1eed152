"""Checksums of a file of weights.

SHA-256 identifies the file; it is recorded for people and checked by `convert`. A CRC-32 of each tensor finds damage
several times as fast and names the tensor; every load checks it, on another thread, while the bytes are in the cache.
"""

import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from vitrine.errors import CheckpointError
from vitrine.runtime.files import sha256_of


class Verifier:
    """Compares the CRC-32 of each tensor that is read with the recorded one."""

    def __init__(self, expected: Mapping[str, str], *, path: Path) -> None:
        self._expected, self._path = expected, path
        # One thread: zlib releases the GIL, so it runs while the next tensor is read.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checksum")
        self._running: list[tuple[str, Future[int]]] = []

    def see(self, name: str, data: memoryview) -> None:
        """Queue a tensor's bytes; they must not change until `finish`."""
        if name in self._expected:
            self._running.append((name, self._pool.submit(zlib.crc32, data)))

    def finish(self) -> None:
        """Wait for all checksums and refuse the first tensor that differs from the one that was saved."""
        self._pool.shutdown(wait=True)
        for name, future in self._running:
            found = f"{future.result():08x}"
            if found != self._expected[name]:
                raise damaged(self._path, found=found, expected=self._expected[name], where=f" in {name}")
        self._running = []


def require_sha256(path: Path, expected: str) -> None:
    """Refuse a file that differs from the one that was saved."""
    found = sha256_of(path)
    if found != expected:
        raise damaged(path, found=found, expected=expected)


def damaged(path: Path, *, found: str, expected: str, where: str = "") -> CheckpointError:
    """Return the error of a file that has changed since it was saved."""
    return CheckpointError(
        f"{path} is not the file that was saved: its checksum{where} is {found[:12]}, its record says "
        f"{expected[:12]}; copy it again with its config.json"
    )
