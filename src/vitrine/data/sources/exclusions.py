"""Lists of images to exclude from a set: one path per line, written by `vitrine dedup`, read by training."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitrine.data.sources.file_list import require_path
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import DataError
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import notice
from vitrine.spelling import printable

_FIRST_LINE = "# Images to exclude, one path per line, as the data set names them."


def write_exclusions(paths: Iterable[str], file: Path) -> None:
    """Write the list; a name with a line break cannot be listed and is refused."""
    with write_atomically(file, mode="w") as out:
        out.write(_FIRST_LINE + "\n")
        for path in paths:
            if "\n" in path or "\r" in path:
                raise DataError(
                    f"{printable(path)!r} contains a line break and cannot be listed; rename the file"
                )
            out.write(path + "\n")


def read_exclusions(file: Path) -> frozenset[str]:
    """Read the paths; blank lines and a first line that starts with # are skipped."""
    text = require_path(file).read_text(encoding="utf-8", errors="surrogateescape")
    lines = [line for line in text.split("\n") if line.strip()]
    if lines and lines[0].startswith("#"):
        lines = lines[1:]
    return frozenset(line.rstrip("\r") for line in lines)


def leave_out(source: Source, paths: Iterable[str]) -> Source:
    """Return the source without the examples named in `paths`, and report how many were excluded.

    A list without any image of the source belongs to another set and is refused.
    """
    unknown = set(paths)
    wanted = frozenset(unknown)
    is_kept = np.ones(len(source), dtype=bool)
    for index in range(len(source)):
        name = source.name(index)
        if name in wanted:
            is_kept[index] = False
            unknown.discard(name)
    if unknown and len(unknown) == len(wanted):
        example = printable(source.name(0)) if len(source) else "class/image.jpg"
        raise DataError(
            f"none of the {len(wanted)} listed images is in {source.address}, such as "
            f"{printable(min(unknown))}; the list must contain paths as the set names them, such as {example}"
        )
    if unknown:
        notice(f"{len(unknown)} of the {len(wanted)} listed images are not in {source.address}")
    notice(f"Excluded {int((~is_kept).sum()):,} of {len(source):,} images, as listed")
    return Subset(source, np.flatnonzero(is_kept))
