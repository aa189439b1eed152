"""Files at an address, through fsspec: read, listed, uploaded whole; network failures are retried. No torch."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from vitrine.errors import DataError
from vitrine.runtime.cache import is_offline, may_download, why_offline
from vitrine.runtime.optional import optional
from vitrine.spelling import printable

Answer = TypeVar("Answer")
_ATTEMPTS, _FIRST_PAUSE_SECONDS = 4, 0.2
# Names for the version or time of a file in different file systems.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "LastModified",
    "last_modified",
    "mtime",
    "updated",
    "created",
)
_OWN_SCHEMES = ("file://", "local://", "memory://")


def upload(file: Path, address: str) -> None:
    """Upload a whole file, which appears at the address in one step."""
    system, place = remote_system(address)
    try:
        retried(lambda: system.put_file(str(file), place), address)
    except FileNotFoundError as error:  # the bucket is missing, since the file exists
        raise DataError(f"cannot write {printable(address)}: {error}") from error


def read_remote(address: str, *, start: int | None = None, end: int | None = None) -> bytes:
    """Read a file or a part of it at an address; failures are retried a few times."""
    system, path = remote_system(address)
    try:
        return retried(lambda: bytes(system.cat_file(path, start=start, end=end)), address)
    except FileNotFoundError as error:
        raise DataError(f"there is no file at {printable(address)}") from error


def walk_remote(address: str) -> Iterator[tuple[str, int]]:
    """Yield path and size in bytes of every file below an address, one folder at a time."""
    system, root = remote_system(address)
    root = root.rstrip("/")

    def failed(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):  # the folder does not exist: nothing to list
            return
        raise DataError(f"cannot list {printable(address)}: {error}") from error

    system.invalidate_cache()
    for folder, _, files in system.walk(root, detail=True, on_error=failed):
        below = folder.rstrip("/").removeprefix(root).lstrip("/")
        for name, facts in files.items():
            if name:  # object stores have an empty file for a folder that someone created
                yield f"{below}/{name}" if below else name, int(facts.get("size") or 0)


def names_at(address: str) -> list[str]:
    """Return the names of files and folders directly at an address; empty if it does not exist."""
    system, path = remote_system(address)

    def listed() -> list[str]:
        system.invalidate_cache()
        return [str(name).rstrip("/").rpartition("/")[2] for name in system.ls(path, detail=False)]

    try:
        return retried(listed, address)
    except FileNotFoundError:
        return []


def matches_at(pattern: str) -> list[str]:
    """Return the addresses of the files that match a pattern such as s3://bucket/*.jpg, sorted."""
    system, path = remote_system(pattern)
    return retried(lambda: sorted(system.unstrip_protocol(one) for one in system.glob(path)), pattern)


def remote_stamp(address: str) -> tuple[int, str]:
    """Return the bytes of a file at an address, and a text that changes with its content; empty if unknown."""
    system, path = remote_system(address)
    try:
        facts = retried(lambda: dict(system.info(path)), address)
    except FileNotFoundError as error:
        raise DataError(f"there is no file at {printable(address)}") from error
    version = next((facts[key] for key in _VERSIONS if facts.get(key)), None)
    return int(facts["size"]), "" if version is None else f"{facts['size']} {version}"


def retried(work: Callable[[], Answer], address: str) -> Answer:
    """Retry a network operation a few times; a missing file is not retried."""
    for attempt in range(_ATTEMPTS):
        try:
            return work()
        except FileNotFoundError:
            raise
        except Exception as error:  # every file system has its own exceptions
            if attempt == _ATTEMPTS - 1:
                raise DataError(f"cannot reach {printable(address)}: {error}") from error
            time.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
    raise AssertionError


def remote_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address and the path in it."""
    if not may_download() or (is_offline() and not address.startswith(_OWN_SCHEMES)):
        reason, advice = why_offline()
        raise DataError(f"{printable(address)} cannot be read: {reason}", advice=advice)
    fsspec = optional("fsspec", extra="data", purpose="reading and writing at an address")
    try:
        system, path = fsspec.core.url_to_fs(address)
    except (ValueError, ImportError) as error:
        raise DataError(f"cannot open {printable(address)}: {error}") from error
    return system, str(path)
