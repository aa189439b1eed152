"""Files and folders at a path of this machine, or at any address that fsspec opens: s3://, gs://, az://, memory://.

A file becomes visible when it is complete: a local one is renamed into its place, a remote one is written here and
uploaded whole, which object stores do in one step. No torch.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, TypeVar

from vitrine.errors import DataError
from vitrine.runtime.files import remove_temporary_files, write_atomically
from vitrine.runtime.remote_store import remote_system, retried, upload

Answer = TypeVar("Answer")
Place: TypeAlias = Path | str
"""A path of this machine, or an address as text."""
# Prefix of a local folder that is used like a remote address.
_DISK_SCHEME = "local://"


def is_remote(place: object) -> bool:
    """Whether a place is an address, not a path: `file://` is read as one, and written as the path that it names."""
    return "://" in str(place)


def suffix_of(place: Place) -> str:
    """Return the suffix of a place's name: `.csv`; empty for a folder."""
    return Path(str(place).rstrip("/").rpartition("/")[2]).suffix


def place_exists(place: Place) -> bool:
    """Whether a place is an existing file."""
    if not is_remote(place):
        return Path(place).is_file()
    system, path = remote_system(str(place))
    return retried(lambda: bool(system.isfile(path)), str(place))


class Folder(Protocol):
    """A place for results: a folder of this machine or a prefix of an object store."""

    address: str

    def read(self, name: str) -> bytes | None:
        """Return the text of a file; None if it does not exist."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files in it, or in a folder of it, sorted."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if it does not exist."""

    def writing(self, name: str) -> Any:
        """Open a file that becomes visible under this name when the block ends without an error."""

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    def put(self, file: Path, name: str) -> None:
        """Copy a file of this machine to here; it becomes visible when it is complete."""

    def get(self, name: str, file: Path) -> None:
        """Copy a file from here to this machine."""


def open_folder(place: Place) -> Folder:
    """Open a folder for results; it is created with its first file."""
    if str(place).startswith(_DISK_SCHEME):
        return LocalFolder(Path(str(place).removeprefix(_DISK_SCHEME)), address=str(place).rstrip("/"))
    return RemoteFolder(str(place)) if is_remote(place) else LocalFolder(Path(place))


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path, *, address: str | None = None) -> None:
        self.path, self.address = path, address or str(path)

    def read(self, name: str) -> bytes | None:
        """Return the text of a file; None if it does not exist."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files in it, or in a folder of it, sorted."""
        try:
            with os.scandir(self.path / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_file() and entry.name[0] != ".")
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if it does not exist."""
        try:
            return (self.path / name).stat().st_size
        except FileNotFoundError:
            return None

    def writing(self, name: str) -> Any:
        """Open a file that becomes visible under this name when the block ends without an error."""
        return write_atomically(self.path / name)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def put(self, file: Path, name: str) -> None:
        """Copy a file to here; it becomes visible when it is complete."""
        with file.open("rb") as source, self.writing(name) as target:
            shutil.copyfileobj(source, target)

    def get(self, name: str, file: Path) -> None:
        """Copy a file from here."""
        with (self.path / name).open("rb") as source, write_atomically(file) as target:
            shutil.copyfileobj(source, target)

    def remove_leftovers_of(self, names: Iterable[str]) -> None:
        """Remove incomplete versions of these files, left by killed processes; only while no process writes them."""
        by_folder: dict[str, set[str]] = {}
        for name in names:
            folder, _, base = name.rpartition("/")
            by_folder.setdefault(folder, set()).add(base)
        for folder, own in by_folder.items():
            remove_temporary_files(self.path / folder, own)


class RemoteFolder:
    """A folder at an address of fsspec."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._system, self._root = remote_system(self.address)

    def read(self, name: str) -> bytes | None:
        """Return the text of a file; None if it does not exist."""
        return self._asked(lambda: bytes(self._system.cat_file(self._at(name))), name)

    def names(self, folder: str = "") -> list[str]:
        """Return the names of the files in it, or in a folder of it, sorted."""
        place = self._at(folder) if folder else self._root

        def listed() -> list[str]:
            self._system.invalidate_cache()
            entries = self._system.ls(place, detail=True)
            return sorted(entry["name"].rpartition("/")[2] for entry in entries if entry["type"] == "file")

        return self._asked(listed, folder) or []

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None if it does not exist."""

        def looked_up() -> int:
            self._system.invalidate_cache()
            return int(self._system.info(self._at(name))["size"])

        return self._asked(looked_up, name)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Write here, and upload the whole file when the block ends without an error."""
        with tempfile.NamedTemporaryFile(prefix="vitrine-") as file:
            yield file
            file.flush()
            upload(Path(file.name), f"{self.address}/{name}")

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        self._asked(lambda: self._system.rm_file(self._at(name)), name)

    def put(self, file: Path, name: str) -> None:
        """Upload a file; it becomes visible when it is complete."""
        upload(file, f"{self.address}/{name}")

    def get(self, name: str, file: Path) -> None:
        """Download a file."""
        retried(lambda: self._system.get_file(self._at(name), str(file)), f"{self.address}/{name}")

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _asked(self, question: Callable[[], Answer], name: str) -> Answer | None:
        try:
            return retried(question, f"{self.address}/{name}")
        except FileNotFoundError:
            return None


@contextmanager
def delivered(place: Place) -> Iterator[Path]:
    """Give a local path to write to; the files in its folder are uploaded afterwards if the place is an address.

    Files that cannot be uploaded are kept on this machine: computing them may have taken hours.
    """
    if not is_remote(place):
        yield Path(place)
        return
    folder, _, name = str(place).rpartition("/")
    here = Path(tempfile.mkdtemp(prefix="vitrine-"))
    is_kept = False
    try:
        yield here / name
        try:
            for file in sorted(here.iterdir()):
                upload(file, f"{folder}/{file.name}")
        except DataError as error:
            is_kept = True
            raise DataError(
                f"{error.problem}; the results are kept in {here}", advice=error.advice
            ) from error
    finally:
        if not is_kept:
            shutil.rmtree(here, ignore_errors=True)
