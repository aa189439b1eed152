"""Pictures that a user names: files, folders, patterns, URLs, lists of paths, standard input, or one data set."""

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from vitrine.data.decoding.file_kind import HEIC_SUFFIXES, IMAGE_SUFFIXES, VIDEO_SUFFIXES
from vitrine.data.decoding.image_file import read_facts
from vitrine.data.sources import parquet, remote_files, shards
from vitrine.data.sources.file_list import FileList, Strings, require_path
from vitrine.data.sources.folder_walk import SkippedFiles, list_images, skipped_text
from vitrine.data.sources.in_memory import PictureList
from vitrine.data.sources.opening import open_loose, open_source
from vitrine.data.sources.source import NO_LABEL, Source
from vitrine.data.sources.tables import TABLES, is_table, path_in, rows_of
from vitrine.errors import DataError
from vitrine.runtime.places import is_remote
from vitrine.runtime.progress import notice
from vitrine.runtime.remote_store import matches_at
from vitrine.spelling import printable

STANDARD_INPUT = "-"
LISTS = (*TABLES, ".txt")
LOOKED_AT = 512  # bytes of standard input that show whether it is text


def open_pictures(places: Sequence[str]) -> tuple[Source | None, list[Path]]:
    """List the pictures at `places`, each once and in order, without labels; also the folders they are in.

    A place is a file, a folder, a pattern, the URL of an image, a .txt file of paths, a table with a column of paths
    (both relative to it), `-` for standard input (one picture, or paths separated by line breaks or NUL bytes), or,
    alone, the address of a data set. None if the places exist and contain no picture; a place that does not exist is
    refused, a missing file that a list names is not.
    """
    if len(places) == 1 and is_data_set(places[0]):
        source = open_packed(places[0])
        return source, [source.root] if source.root else []
    names: dict[str, None] = {}  # a set that keeps its order
    folders, piped = [], None
    for place in places:
        if place == STANDARD_INPUT:
            data = sys.stdin.buffer.read()
            piped = data if is_picture(data) else piped
            names |= dict.fromkeys([STANDARD_INPUT] if is_picture(data) else _separated(data))
        elif is_remote(place):
            names |= dict.fromkeys(_at_address(place))
        else:
            matches, in_folders = _at_path(place)
            names |= dict.fromkeys(matches)
            folders += in_folders
    if not names:
        return None, folders
    if piped is not None or any(map(is_remote, names)):
        pictures = [piped if name == STANDARD_INPUT and piped is not None else name for name in names]
        return PictureList(pictures, names=list(names)), folders
    labels = np.full(len(names), NO_LABEL, dtype=np.int32)
    # The user names these files, so they may be anywhere: `Strings` skips the check of listings from elsewhere.
    paths = Strings(names)
    return FileList(Path(), paths, labels=labels, classes=(), address=" ".join(places)), folders


def _at_path(place: str) -> tuple[list[str], list[Path]]:
    """List the pictures that a path or a pattern names, and the folders among them."""
    names: list[str] = []
    folders = []
    for match in _matches(place) or [place]:
        path = Path(match)
        if path.is_dir():
            folders.append(path)
            names += _images_in(path)
        elif path.suffix.lower() in LISTS:
            names += _listed(require_path(path))
        elif not glob.has_magic(match) or path.exists():
            names.append(str(require_path(path)))
    return names, folders


def _at_address(place: str) -> Iterator[str]:
    """List the picture at an address, what a pattern there matches, or the images below it."""
    if is_picture_url(place):
        yield place
        return
    if glob.has_magic(place):
        yield from (one for one in matches_at(place) if Path(one).suffix.lower() in IMAGE_SUFFIXES)
        return
    source = remote_files.open_loose(place)
    yield from (source.name(index) for index in range(len(source)))


def _images_in(folder: Path) -> Iterator[str]:
    """List the images below a folder, and report every other file."""
    skipped = SkippedFiles()
    yield from (str(folder / name) for name in list_images(folder, skipped))
    if skipped.counts:
        notice(f"{printable(str(folder))}: {skipped_text(skipped.counts, skipped.names)}")


def open_packed(place: str) -> Source:
    """Open a data set for its pictures: those that are packed or at an address need no labels."""
    if shards.recognises(place) or parquet.recognises(place) or remote_files.recognises(place):
        return open_loose(place)
    return open_source(place, allow_empty_class=True)


def is_picture(data: bytes) -> bool:
    """Whether bytes are an encoded picture, maybe a damaged one, and no list of paths."""
    try:
        read_facts(data, name=STANDARD_INPUT)
    except DataError:
        return any(byte < ord(" ") and byte not in b"\0\t\r\n" for byte in data[:LOOKED_AT])
    return True


def is_data_set(place: str) -> bool:
    """Whether `place` is a data set: an address such as generated:shapes, shards, Parquet, or a folder of these."""
    path = Path(place)
    if path.exists():
        is_packed = shards.recognises(place) or parquet.recognises(place)
        return is_packed and (path.is_file() or next(list_images(path), None) is None)
    if is_remote(place) and glob.has_magic(place):
        return False
    return ":" in place and not _matches(place) and not is_picture_url(place)


def is_picture_url(place: str) -> bool:
    """Whether `place` is the address of one image."""
    is_one = is_remote(place) and not glob.has_magic(place)
    return is_one and Path(urlsplit(place).path).suffix.lower() in IMAGE_SUFFIXES


def names_pictures(place: str) -> bool:
    """Whether `place` can only mean pictures: by its suffix, or since it is a pattern that something matches."""
    suffix = Path(place).suffix.lower()
    return (
        place == STANDARD_INPUT
        or is_picture_url(place)
        or suffix in IMAGE_SUFFIXES | HEIC_SUFFIXES | VIDEO_SUFFIXES
        or suffix in LISTS
        or bool(_matches(place))
        or "://" in place
        or (Path(place).exists() and is_data_set(place))
    )


def _matches(place: str) -> list[str]:
    if not glob.has_magic(place) or Path(place).exists():
        return []
    return sorted(glob.glob(place, recursive=True))  # noqa: PTH207 (takes absolute patterns too)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    return (line.rstrip("\r\n") for line in lines if line.strip())


def _separated(data: bytes) -> Iterator[str]:
    """Read paths as `find -print0` or as `find` writes them."""
    if b"\0" in data:
        return (os.fsdecode(path) for path in data.split(b"\0") if path)
    return _lines(os.fsdecode(line) for line in data.split(b"\n"))


def _listed(path: Path) -> list[str]:
    if is_table(path):
        names = [path_in(row, number, path) for number, row in rows_of(path)]
    else:
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            names = list(_lines(file))
    paths = [name if is_remote(name) else str(path.parent / name) for name in names]
    if paths and not any(is_remote(listed) or Path(listed).exists() for listed in paths[:5]):
        raise DataError(
            f"{printable(str(path))} names {printable(names[0])}, which is not in {printable(str(path.parent))}; "
            "paths must be whole, or relative to the folder of the list"
        )
    return paths
