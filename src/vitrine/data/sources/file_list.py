"""Images that are files of their own under one folder: what class folders, manifests and lists share."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.sources.source import Example, Labels, Source
from vitrine.errors import DataError
from vitrine.runtime.progress import notice
from vitrine.spelling import near_match, printable

# What is listed as an image; whether it is one is found by reading it. Other files are passed over.
_SUFFIXES = "jpg jpeg jpe jfif png bmp gif webp tif tiff ppm pgm pbm pnm avif jp2 ico tga"
IMAGE_SUFFIXES = frozenset("." + name for name in _SUFFIXES.split())
# Photos that Pillow alone does not read: of phones, and the raw files of cameras.
PHOTO_SUFFIXES = frozenset((".heic", ".heif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"))


# Folders that computers leave among photos: macOS in archives, Synology for its thumbnails.
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
    """Files by path relative to `base`, which is `root` unless given, with labels."""

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


def read_file(path: str) -> bytes:
    """Read a whole file, or say in one sentence why it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (the fastest way, called for every image)
            return file.read()
    except OSError as error:
        raise DataError(f"cannot read {printable(path)}: {error.strerror}") from error


def list_images(folder: Path) -> Iterator[str]:
    """Yield every image file below `folder` as a path relative to it, folders and names sorted.

    Links to folders are followed, except those that lead back up to a folder they are in. Hidden files and
    litter are passed over.
    """
    yield from _walk(str(folder), "", above=frozenset([_identity(str(folder))]))


def holds_images(folder: Path) -> bool:
    """Whether images lie directly in a folder, those of its own folders aside."""
    return any(
        _is_image(entry.name) and not _is_passed_over(entry.name) and not _is_folder(entry)
        for entry in scan(str(folder))
    )


def subfolders(folder: Path) -> list[str]:
    """Names of the folders directly in `folder`, sorted, without hidden ones and litter."""
    return sorted(
        entry.name for entry in scan(str(folder)) if not _is_passed_over(entry.name) and entry.is_dir()
    )


def scan(folder: str) -> list[os.DirEntry[str]]:
    """List a folder, or say in one sentence why it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"cannot list the folder {printable(folder)}: {error.strerror}") from error


def require_path(path: Path) -> Path:
    """Return `path` if it exists, else say what does that is spelt like it."""
    if os.path.lexists(path) and not path.exists():
        raise DataError(f"{printable(str(path))} is a broken link; it leads to {os.readlink(path)}")  # noqa: PTH115
    if path.exists():
        return path
    raise DataError(no_such(path, kind="file" if path.suffix else "folder"))


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
    """Say that `path` does not exist, with the nearest one that does."""
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
    """Say that a folder holds none, and which of its files are photos that are not read."""
    photos = photos_passed_over(passed_over(folder))
    return f"{printable(str(folder))} holds no images" + (f"; {photos}" if photos else "")


def passed_over(root: Path) -> dict[str, int]:
    """Count the files below a folder that are not taken for images, by the ending of their names."""
    endings = Counter[str]()
    for _, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not _is_passed_over(name)]
        for name in files:
            ending = os.path.splitext(name)[1].lower()  # noqa: PTH122 (called for every file)
            if not name.startswith(".") and ending not in IMAGE_SUFFIXES:
                endings[ending or "no ending"] += 1
    return {printable(ending): count for ending, count in endings.most_common()}


def photos_passed_over(endings: Mapping[str, int]) -> str:
    """Say which of the files that are not taken for images are photos, and what would do; empty where none is."""
    photos = [f"{count:,} {ending}" for ending, count in endings.items() if ending in PHOTO_SUFFIXES]
    return f"{', '.join(photos)} passed over: save such photos as JPEG to have them read" if photos else ""


def _walk(folder: str, prefix: str, *, above: frozenset[tuple[int, int]]) -> Iterator[str]:
    for entry in sorted(scan(folder), key=lambda entry: entry.name):
        if _is_passed_over(entry.name):
            continue
        if _is_folder(entry):
            identity = _identity(entry.path)
            if identity in above:
                notice(
                    f"{printable(entry.path)} is a link back to a folder that it is in; it is not followed"
                )
                continue
            yield from _walk(entry.path, f"{prefix}{entry.name}/", above=above | {identity})
        elif _is_image(entry.name):
            yield prefix + entry.name


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES  # noqa: PTH122 (called for every file)


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or name in LITTER


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself: reading it as an image will say so
        return False


def _identity(folder: str) -> tuple[int, int]:
    facts = os.stat(folder)  # noqa: PTH116
    return facts.st_dev, facts.st_ino


def _grow(items: Iterable[str], joined: bytearray) -> Iterator[int]:
    for item in items:
        joined += item.encode("utf-8", "surrogateescape")
        yield len(joined)
