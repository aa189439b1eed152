"""Let only one process at a time write to a file or folder. No torch.

The lock is the operating system's, on a hidden file beside the path: it ends with the process that holds it, whether
that finishes, crashes or is killed.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from vitrine.errors import ConfigError
from vitrine.runtime.progress import notice

_POLL_SECONDS = 0.02
# Errors of file systems without locks, on which no process waits.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Wait until no other process has locked `path`, and hold the lock inside the block."""
    lock = _lock_beside(path)
    if not _acquire(lock, blocking=False):
        notice(f"Waiting for another process that is writing to {path}")
        _acquire(lock, blocking=True)
    with _released_at_the_end(lock):
        yield


@contextmanager
def require_lock(path: Path, *, advice: str) -> Iterator[None]:
    """Refuse if another process has locked `path`, else hold the lock inside the block."""
    lock = _lock_beside(path)
    if not _acquire(lock, blocking=False):
        raise ConfigError(f"another process is writing to {path}; {advice}")
    with _released_at_the_end(lock):
        yield


def _lock_beside(path: Path) -> FileLock:
    file = path.with_name(f".{path.name[:40]}.lock")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # A new object per call: each one counts as a separate process.
        return FileLock(file, is_singleton=False, fallback_to_soft=False)
    except OSError as error:
        raise _cannot_write(file, error) from None


def _acquire(lock: FileLock, *, blocking: bool) -> bool:
    """Return False if another process holds the lock and we do not wait."""
    file = Path(lock.lock_file)
    try:
        lock.acquire(blocking=blocking, poll_interval=_POLL_SECONDS)
    except Timeout:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise _cannot_write(file, error) from None
    return True


@contextmanager
def _released_at_the_end(lock: FileLock) -> Iterator[None]:
    try:
        yield
    finally:
        # Removed while locked: a process that has it open sees that it has no name any more, and tries again.
        with suppress(OSError):  # Windows does not remove an open file
            Path(lock.lock_file).unlink()
        lock.release()


def _cannot_write(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot write in {file.parent}: {error.strerror}; check its owner and mode, or choose another folder"
    )
