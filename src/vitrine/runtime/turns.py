"""Let one process at a time work on a file or folder that several may want at once. No torch.

The lock is the system's, on a hidden file beside: it goes away with the process that holds it, however that ends.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO

from vitrine.errors import ConfigError
from vitrine.runtime.progress import notice

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows: everyone goes ahead
    fcntl = None


@contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """Go on when no other process works on `path`, and hold others back for the length of the block."""
    lock = _lock_of(path)
    file = _taken(lock, waits=False)
    if file is None:
        notice(f"Waiting for another process that is at work on {path}")
        file = _taken(lock, waits=True)
    assert file is not None
    with _held(file, lock):
        yield


@contextmanager
def alone_at(path: Path, *, advice: str) -> Iterator[None]:
    """Refuse at once where another process works on `path`, else hold others back for the length of the block."""
    lock = _lock_of(path)
    file = _taken(lock, waits=False)
    if file is None:
        raise ConfigError(f"another process is at work on {path}; {advice}")
    with _held(file, lock):
        yield


def _lock_of(path: Path) -> Path:
    lock = path.with_name(f".{path.name[:40]}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise ConfigError(
            f"cannot write in {lock.parent}: {error.strerror}; check its owner and mode, or name another folder"
        ) from None
    return lock


def _taken(lock: Path, *, waits: bool) -> IO[bytes] | None:
    """Return the open, locked file; None where another process has it and we do not wait."""
    while True:
        file = lock.open("ab")
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            return None
        except OSError:  # a file system without locks: everyone goes ahead
            return file
        # Whoever held it took the file away when done: a lock on what has no name holds nobody back.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                return file
        file.close()


@contextmanager
def _held(file: IO[bytes], lock: Path) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(OSError):  # some systems keep a file that is open
            lock.unlink()
        file.close()
