"""Images that are files under one folder: shared by class folders, manifests and lists."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.decoding.decode import read_file
from vitrine.data.sources.source import Example, Labels, Source
from vitrine.errors import DataError, MissingDataError
from vitrine.runtime.progress import notice
from vitrine.spelling import near_match, printable

# Extensions of files that are listed as images; reading a file shows whether it is one. Other files are skipped.
_SUFFIXES = "jpg jpeg jpe jfif png bmp gif webp tif tiff ppm pgm pbm pnm avif jp2 ico tga"
IMAGE_SUFFIXES = frozenset("." + name for name in _SUFFIXES.split())
# Photos that Pillow does not read: HEIC of phones, raw files of cameras.
PHOTO_SUFFIXES = frozenset((".heic", ".heif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"))


# Folders that systems leave among photos: macOS in archives, Synology for its thumbnails.
LITTER = ("__MACOSX", "@eaDir")


class Strings(Sequence[str]):
    """Many strings in two arrays: their bytes joined, and where each one ends.

    A million paths of 40 characters take 48 MB here and about 200 MB as Python strings in a list.
    """

    def __init__(self, items: Iterable[str] = ()) -> None:
        joined = bytearray()
        self._ends = np.fromiter(_grow(items, joined), dtype=np.int64)
        self._joined = bytes(joined)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]  # counts from the end where negative, refuses what is outside
        end = int(self._ends[index])
        start = int(self._ends[index - 1]) if index else 0
        return self._joined[start:end].decode("utf-8", "surrogateescape")

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return len(self._joined) + self._ends.nbytes


class FileList(Source):
    """Files by path relative to `base` (by default `root`), with labels."""

    def __init__(
        self,
        root: Path,
        paths: Iterable[str],
        *,
        labels: Labels,
        classes: Sequence[str],
        address: str = "",
        base: Path | None = None,
    ) -> None:
        self.root = root
        self.base = root if base is None else base
        self.paths = paths if isinstance(paths, Strings) else Strings(_inside(paths, self.base, address))
        self.labels = labels
        self.classes = tuple(classes)
        self.address = address or str(root)
        assert len(self.paths) == len(self.labels)

    def name(self, index: int) -> str:
        """Path of file `index` relative to the base."""
        name: str = self.paths[index]
        return name

    def path(self, index: int) -> Path:
        """Return the file that is example `index`."""
        return self.base / self.name(index)

    def read(self, index: int) -> Example:
        """Read the bytes of file `index`."""
        name = self.name(index)
        return Example(data=read_file(str(self.path(index))), label=self.label(index), name=name)

    def size(self, index: int) -> int:
        """Bytes of file `index`, 0 where it cannot be read."""
        try:
            return os.stat(os.path.join(str(self.base), self.name(index))).st_size  # noqa: PTH116, PTH118
        except OSError:
            return 0


def list_images(folder: Path) -> Iterator[str]:
    """Yield every image file below `folder` as a path relative to it, folders and names sorted.

    Links to folders are followed, except those that lead back to a folder above them. Hidden files and
    system folders are skipped.
    """
    yield from _walk(str(folder), "", above=frozenset([_identity(str(folder))]))


def holds_images(folder: Path) -> bool:
    """Whether images lie directly in a folder, not only in its subfolders."""
    return any(
        _is_image(entry.name) and not _is_skipped(entry.name) and not _is_folder(entry)
        for entry in scan(str(folder))
    )


def subfolders(folder: Path) -> list[str]:
    """Names of the folders directly in `folder`, sorted, without hidden ones and system folders."""
    return sorted(entry.name for entry in scan(str(folder)) if not _is_skipped(entry.name) and entry.is_dir())


def scan(folder: str) -> list[os.DirEntry[str]]:
    """List a folder; the error names the folder and the reason."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"cannot list the folder {printable(folder)}: {error.strerror}") from error


def require_path(path: Path) -> Path:
    """Return `path` if it exists; the error suggests one with a similar name."""
    if os.path.lexists(path) and not path.exists():
        raise MissingDataError(f"{printable(str(path))} is a broken link to {os.readlink(path)}")  # noqa: PTH115
    if path.exists():
        return path
    raise MissingDataError(no_such(path, kind="file" if path.suffix else "folder"))


def require_inside(name: str, folder: str | Path, *, listing: str) -> None:
    """Refuse a file that a listing (a manifest, shards.json) names outside its own folder, unless that is allowed.

    A listing from elsewhere could name any file of this machine. $VITRINE_ALLOW_OUTSIDE allows it.
    """
    if name[:1] not in ("/", "\\") and ".." not in name and ":" not in name:
        return
    base = os.path.abspath(folder)  # noqa: PTH100 (links stay as they are)
    place = os.path.normpath(os.path.join(base, name))  # noqa: PTH118
    is_inside = place.startswith(os.path.join(base, "")) and "://" not in name  # noqa: PTH118
    if is_inside or os.environ.get("VITRINE_ALLOW_OUTSIDE") == "1":
        return
    raise DataError(
        f"{printable(listing)} names {printable(name)}, which lies outside its folder; move the files below it, or "
        "set VITRINE_ALLOW_OUTSIDE=1 if you trust this list"
    )


def _inside(names: Iterable[str], folder: Path, listing: str) -> Iterator[str]:
    for name in names:
        require_inside(name, folder, listing=listing or str(folder))
        yield name


def no_such(path: Path, *, kind: str) -> str:
    """Return the sentence that `path` does not exist, with the most similar one that does."""
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        path, parent = parent, parent.parent
    text = f"no such {kind} {printable(str(path))}"
    try:
        names = os.listdir(parent)  # noqa: PTH208
    except OSError:
        names = []
    close = near_match(path.name, names)
    return f"{text}; did you mean {printable(str(parent / close))}?" if close else text


def no_images(folder: Path) -> str:
    """Return the sentence that a folder contains no images, and which photos in it cannot be read."""
    photos = photos_skipped(skipped_extensions(folder))
    return f"{printable(str(folder))} contains no images" + (f"; {photos}" if photos else "")


def skipped_extensions(root: Path) -> dict[str, int]:
    """Count the files below a folder that have no image extension, by extension."""
    endings = Counter[str]()
    for _, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not _is_skipped(name)]
        for name in files:
            ending = os.path.splitext(name)[1].lower()  # noqa: PTH122 (called for every file)
            if not name.startswith(".") and ending not in IMAGE_SUFFIXES:
                endings[ending or "no ending"] += 1
    return {printable(ending): count for ending, count in endings.most_common()}


def photos_skipped(endings: Mapping[str, int]) -> str:
    """Name the photos among skipped files and how to have them read; empty if there are none."""
    photos = [f"{count:,} {ending}" for ending, count in endings.items() if ending in PHOTO_SUFFIXES]
    return f"save these photos as JPEG: {', '.join(photos)}" if photos else ""


def _walk(folder: str, prefix: str, *, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    for entry in sorted(scan(folder), key=lambda entry: entry.name):
        if _is_skipped(entry.name):
            continue
        if _is_folder(entry):
            identity = _identity(entry.path)
            if identity in above:
                notice(f"{printable(entry.path)} links back to a folder above it; it is not followed")
                continue
            yield from _walk(entry.path, f"{prefix}{entry.name}/", above=above | {identity})
        elif _is_image(entry.name):
            yield prefix + entry.name


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122 (called for every file)


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in LITTER


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reading it as an image reports it
        return False


def _identity(folder: str) -> tuple[int, int]:
    facts = os.stat(folder)  # noqa: PTH116
    return facts.st_dev, facts.st_ino


def _grow(items: Iterable[str], joined: bytearray) -> Iterator[int]:
    for item in items:
        joined += item.encode("utf-8", "surrogateescape")
        yield len(joined)
