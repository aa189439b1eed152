"""Write files so that a crash leaves the old file or the new one, never a part of one. No torch."""

import csv
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from vitrine.errors import CheckpointError, ConfigError

# Names in these folders are open files of a process, whatever they resolve to: /dev/stdout is /proc/self/fd/1.
_OPEN_FILES = (Path("/proc"), Path("/dev/fd"))
_MAX_LINKS = 40  # as in Linux
_NAME_LENGTH, _MARK_BYTES = 40, 8
BYTE_ORDER_MARK = "\ufeff"
_TEMPORARY = re.compile(rf"\.(.{{1,{_NAME_LENGTH}}})\.[0-9a-f]{{{2 * _MARK_BYTES}}}", re.DOTALL)


@contextmanager
def write_atomically(path: Path, *, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file that takes the place of `path` when the block ends without an error.

    A symbolic link is kept, and the file that it names is replaced. A device, a pipe or an open file (`/dev/stdout`)
    is kept too: it receives the content when the block has ended.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text: dict[str, Any] = (
        {} if "b" in mode else {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    )
    special = special_place(path)
    if special is not None:
        with tempfile.TemporaryFile(mode.replace("w", "w+"), **text) as file:
            yield file
            file.flush()
            file.seek(0)
            _write_through(special, getattr(file, "buffer", file))
        return
    target = Path(os.path.realpath(path))
    # Created like any other file, so that the system applies the user's umask to its mode.
    temporary = temporary_beside(target)
    try:
        with temporary.open(mode.replace("w", "x"), **text) as file:
            yield file
            file.flush()
            _take_over_owner_and_mode(target, temporary)
            os.fsync(file.fileno())
        move_into_place(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def write_table(path: Path) -> Iterator[Any]:
    """Yield a writer of CSV rows, which take the place of `path` when the block ends without an error.

    A table with non-ASCII characters begins with a byte order mark; without it, Excel shows wrong characters.
    """
    rows = io.StringIO(newline="")
    yield csv.writer(rows, lineterminator="\n")
    text = rows.getvalue()
    with write_atomically(path, mode="w") as file:
        file.write(text if text.isascii() else BYTE_ORDER_MARK + text)


def special_place(path: Path) -> Path | None:
    """Follow links from `path` to a device, a pipe or an open file of a process; None if it can be replaced."""
    for _ in range(_MAX_LINKS):
        folder = Path(os.path.realpath(path.parent))
        if any(folder.is_relative_to(place) for place in _OPEN_FILES):
            return folder / path.name
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return None if stat.S_ISREG(mode) else path


def require_free_space(folder: Path, needed: int, *, purpose: str) -> None:
    """Refuse, before writing, content for which the disk has too little space."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{folder} has {size_in_words(free)} free and {purpose} needs {size_in_words(needed)}; free some space"
        )


def move_into_place(source: Path, target: Path) -> None:
    """Rename a finished file or folder to `target`, and wait until the rename itself is on the disk."""
    os.replace(source, target)  # noqa: PTH105
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on the disk, if the file system supports it."""
    with suppress(OSError):  # Windows and some network file systems cannot open or sync a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_beside(path: Path) -> Path:
    """Return a unique hidden name beside `path`, which `remove_temporary_files` recognises."""
    return path.with_name(f".{path.name[:_NAME_LENGTH]}.{secrets.token_hex(_MARK_BYTES)}")


def is_temporary(name: str) -> bool:
    """Whether a name was created by `temporary_beside`."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporary_files(folder: Path, names: Container[str] | None = None) -> None:
    """Remove files that interrupted writes have left in a folder; with `names` (short ones), of these files only.

    Call it only while no other process writes there.
    """
    for entry in folder.iterdir() if folder.is_dir() else ():
        match = _TEMPORARY.fullmatch(entry.name)
        if match is None or (names is not None and match[1] not in names):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _take_over_owner_and_mode(target: Path, temporary: Path) -> None:
    """Give a new file the owner and mode of the one that it replaces; the owner only if permitted."""
    try:
        before = target.stat()
    except FileNotFoundError:
        return
    now = temporary.stat()
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        with suppress(OSError):
            os.chown(temporary, before.st_uid, before.st_gid)
    temporary.chmod(stat.S_IMODE(before.st_mode))


def _write_through(path: Path, content: IO[bytes]) -> None:
    own = Path(os.path.realpath("/proc/self/fd")), Path("/dev/fd")
    if path.parent in own and path.name.isdecimal():
        for stream in (sys.stdout, sys.stderr):  # earlier output comes first
            stream.flush()
        descriptor = os.dup(int(path.name))  # which shares the file position, unlike a newly opened one
    else:
        descriptor = os.open(path, os.O_WRONLY)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file)


def json_text(values: Any, *, indent: int | None = None) -> str:
    """Write values as JSON that every reader accepts; names that are not valid UTF-8 survive the round trip."""
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # the name of a folder from an old archive: escaped, so that all text is ASCII
        return json.dumps(values, indent=indent)
    return text


def parse_json(text: str | bytes) -> Any:
    """Read JSON from an untrusted source; any defect, such as endlessly nested lists, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sha256_of(path: Path) -> str:
    """Read a file in pieces and return its SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_in_words(num_bytes: float) -> str:
    """Format a number of bytes for people: 5.6 MB, 1.3 GB."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def require_own_file(path: Path, *, root: Path) -> None:
    """Refuse a path that leads out of the folder `root` (given without links), or that is no file or folder."""
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(root):
        raise ConfigError(
            f"{path} is a symbolic link to {target}, outside the run folder; replace it by a file or folder of its "
            "own"
        )
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path} is a pipe or a device; remove it from the run folder")
