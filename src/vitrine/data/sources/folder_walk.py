"""Walk a folder of photos: the images in it, and every other file by the reason why it is not one of them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vitrine.data.decoding.file_kind import (
    HEIC_ADVICE,
    HEIC_SUFFIXES,
    RAW_SUFFIXES,
    VIDEO_SUFFIXES,
    frames_advice,
    is_image_file,
    suffix_of,
)
from vitrine.errors import DataError
from vitrine.runtime.progress import notice
from vitrine.spelling import printable

# Folders that systems leave among photos: macOS in archives, Synology for its thumbnails.
LITTER = ("__MACOSX", "@eaDir")
HIDDEN, SYSTEM, NO_EXTENSION = "hidden", "system folder", "no extension"
# Names that a message shows of each kind of skipped file.
MOST_NAMES = 3


@dataclass
class SkippedFiles:
    """Files below a folder that are not read as images, by kind: their extension, or `hidden`, `system folder`."""

    counts: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """The first few of each kind, relative to the folder."""
    hidden_images: list[str] = field(default_factory=list)
    """Images among the hidden files."""

    def add(self, kind: str, name: str) -> None:
        """Count a file."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(names := self.names.setdefault(kind, [])) < MOST_NAMES:
            names.append(printable(name))

    def remove(self, kind: str, name: str) -> None:
        """Take back a file that is used after all."""
        if kind not in self.counts or name.startswith(os.pardir):
            return
        self.counts[kind] -= 1
        self.names[kind] = [one for one in self.names[kind] if one != printable(name)]
        if not self.counts[kind]:
            del self.counts[kind], self.names[kind]


def list_images(folder: Path, skipped: SkippedFiles | None = None) -> Iterator[str]:
    """Yield every image file below `folder` as a path relative to it, folders and names sorted.

    A file is an image by its extension, or else by its first bytes. Links to folders are followed, except those that
    lead back to a folder above them. Hidden files and system folders are skipped; `skipped` counts them.
    """
    yield from _walk(str(folder), "", above=_ancestors(folder), skipped=skipped)


def skipped_files(folder: Path) -> SkippedFiles:
    """Count the files below a folder that are not read as images."""
    skipped = SkippedFiles()
    for _ in list_images(folder, skipped):
        pass
    return skipped


def holds_images(folder: Path) -> bool:
    """Whether images lie directly in a folder, not only in its subfolders."""
    return any(
        not _is_skipped(entry.name) and not _is_folder(entry) and is_image_file(str(folder), entry.name)
        for entry in scan(str(folder))
    )


def subfolders(folder: Path) -> list[str]:
    """Names of the folders directly in `folder`, sorted, without hidden ones, system folders and links upwards."""
    above = _ancestors(folder)
    return sorted(
        entry.name
        for entry in scan(str(folder))
        if not _is_skipped(entry.name) and entry.is_dir() and not _leads_back(entry, above)
    )


def scan(folder: str) -> list[os.DirEntry[str]]:
    """List a folder; the error names the folder and the reason."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"cannot list the folder {printable(folder)}: {error.strerror}") from error


def skipped_text(counts: Mapping[str, int], names: Mapping[str, Iterable[str]]) -> str:
    """Count and name skipped files by kind, and write how the photos and videos among them can be read."""
    kinds = []
    for kind, count in counts.items():
        named = list(names.get(kind, ()))
        more = ", ..." if count > len(named) else ""
        kinds.append(f"{count:,} {kind}" + (f" ({', '.join(named)}{more})" if named else ""))
    return "; ".join([f"Skipped files: {', '.join(kinds)}", *photo_advice(counts)])


def photo_advice(counts: Mapping[str, int]) -> list[str]:
    """Write how photos and videos among skipped files can be read; nothing if there are none."""

    def of(suffixes: Iterable[str]) -> str:
        return ", ".join(f"{counts[ending]:,} {ending}" for ending in counts if ending in suffixes)

    advice = []
    if heic := of(HEIC_SUFFIXES):
        advice.append(f"to read {heic}, {HEIC_ADVICE}")
    if raw := of(RAW_SUFFIXES):
        advice.append(f"save these photos as JPEG: {raw}")
    if videos := of(VIDEO_SUFFIXES):
        advice.append(f"from {videos}, {frames_advice('VIDEO')}")
    return advice


def no_images(folder: Path) -> str:
    """Return the sentence that a folder contains no images, and which photos in it cannot be read."""
    advice = photo_advice(skipped_files(folder).counts)
    return "; ".join([f"{printable(str(folder))} contains no images", *advice])


def _walk(
    folder: str, prefix: str, *, above: frozenset[tuple[int, int]], skipped: SkippedFiles | None
) -> Iterator[str]:
    for entry in sorted(scan(folder), key=lambda entry: entry.name):
        name = prefix + entry.name
        if _is_skipped(entry.name):
            if skipped is not None:
                _count_hidden(entry, name, skipped)
        elif _is_folder(entry):
            if not _leads_back(entry, above):
                inner = above | {_identity(entry.path)}
                yield from _walk(entry.path, f"{name}/", above=inner, skipped=skipped)
        elif is_image_file(folder, entry.name):
            yield name
        elif skipped is not None:
            skipped.add(printable(suffix_of(entry.name)) or NO_EXTENSION, name)


def _count_hidden(entry: os.DirEntry[str], name: str, skipped: SkippedFiles) -> None:
    is_folder = _is_folder(entry)
    skipped.add(SYSTEM if entry.name in LITTER else HIDDEN, f"{name}/" if is_folder else name)
    # macOS writes the attributes of photo.jpg to ._photo.jpg: such a file has the extension and no picture.
    if (
        not is_folder
        and not entry.name.startswith("._")
        and is_image_file(entry.path.removesuffix(entry.name), entry.name)
    ):
        skipped.hidden_images.append(name)


def _leads_back(entry: os.DirEntry[str], above: frozenset[tuple[int, int]]) -> bool:
    """Whether a folder is one of those above it, reached by a link."""
    if not entry.is_symlink() or _identity(entry.path) not in above:
        return False
    notice(f"{printable(entry.path)} links back to a folder above it; it is not followed")
    return True


def _ancestors(folder: Path) -> frozenset[tuple[int, int]]:
    """Return the identities of a folder and of all folders above it."""
    whole = folder.resolve()
    return frozenset(_identity(str(one)) for one in (whole, *whole.parents) if one.exists())


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
