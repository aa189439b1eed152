"""Checksums of a file of weights.

SHA-256 says which file it is; it is written down for people and checked by `convert`. CRC-32 finds damage several
times as fast; every load checks it, on another thread beside the reading.
"""

import hashlib
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrine.errors import CheckpointError

CHUNK_BYTES = 1 << 20  # fits a core's cache, so that the bytes are summed where they were copied to


@dataclass
class Checksums:
    """Both sums of the bytes so far."""

    sha256: Any = field(default_factory=hashlib.sha256)
    crc32: int = 0

    def update(self, data: bytes | memoryview) -> None:
        """Go on with more bytes."""
        self.sha256.update(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def to_json(self) -> dict[str, str]:
        """Return both sums in hexadecimal."""
        return {"sha256": self.sha256.hexdigest(), "crc32": f"{self.crc32:08x}"}


def sha256_of(path: Path) -> str:
    """Read a file in pieces and return its SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def crc32_of(path: Path) -> str:
    """Read a file in pieces and return its CRC-32."""
    found, buffer = 0, bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            found = zlib.crc32(view[:count], found)
    return f"{found:08x}"


def begin(path: Path) -> Future[str]:
    """Start to compute a file's CRC-32 on another thread; zlib lets go of Python's lock."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checksum")
    future = pool.submit(crc32_of, path)
    pool.shutdown(wait=False)
    return future


def require(found: str, expected: str, *, path: Path) -> None:
    """Refuse a file that is not the one that was written."""
    if found != expected:
        raise CheckpointError(
            f"{path} is not the file that was saved: its checksum is {found[:12]}, its record says "
            f"{expected[:12]}; copy it again with its config.json"
        )
