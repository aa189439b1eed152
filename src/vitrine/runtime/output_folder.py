"""The output folder of a command: a new dated one under ./runs, or the one that the user names; never in data."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from vitrine.errors import ConfigError, TryOption, VitrineError
from vitrine.runtime.progress import notice


def new_output_folder(
    named: str | Path | None,
    *,
    verb: str,
    files: Iterable[str],
    never_in: Iterable[Path] = (),
    is_overwriting: bool = False,
) -> Path:
    """Choose and create the folder for the results of `verb`, which will write `files` there.

    Refuses a folder inside any of `never_in`, and one that already holds one of the files.
    """
    never_in = list(never_in)
    parent = Path("runs") if named is not None else _runs_outside(never_in)
    folder = Path(named) if named is not None else _dated(parent, verb)
    for data in never_in:
        if is_inside(folder, data):
            raise ConfigError(
                f"{folder} is inside the data set {data}, where nothing is ever written; choose a folder outside it",
                option="out",
            )
    present = [] if named is None else [name for name in files if (folder / name).exists()]
    if present and not is_overwriting:
        raise ConfigError(
            f"{folder} already holds {present[0]}; choose another folder",
            option="out",
            advice=[TryOption("overwrite", "to replace it", True)],
        )
    try:
        if named is None:
            return _new_dated(parent, verb)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create the folder {folder}: {error.strerror}; choose another", option="out"
        ) from error
    return folder


@contextmanager
def removed_if_empty(folder: Path) -> Iterator[None]:
    """Remove a folder again if the block fails or is interrupted before anything was written there."""
    try:
        yield
    except (VitrineError, KeyboardInterrupt):
        with suppress(OSError):  # it is not empty
            folder.rmdir()
        raise


def is_inside(path: Path, data: Path) -> bool:
    """Whether `path` is `data` or below it, with links resolved; for a single file, only the file itself."""
    root = os.path.realpath(data)
    return os.path.commonpath([root, os.path.realpath(path)]) == root


def _runs_outside(never_in: Iterable[Path]) -> Path:
    """Return `runs` in the working directory, or beside the data set if the command was started inside it."""
    here = Path("runs")
    outermost = min(
        (data for data in never_in if data.is_dir() and is_inside(here, data)),
        key=lambda data: len(os.path.realpath(data)),
        default=None,
    )
    if outermost is None:
        return here
    beside = Path(os.path.relpath(os.path.dirname(os.path.realpath(outermost)))) / here  # noqa: PTH120
    notice(f"Results go to {beside}, as nothing is ever written into the data set")
    return beside


def _new_dated(parent: Path, verb: str) -> Path:
    """Create a new folder, even if two commands start in the same second."""
    parent.mkdir(exist_ok=True)
    number = 1
    while True:
        folder = _dated(parent, verb, number)
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def _dated(parent: Path, verb: str, number: int = 1) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    return parent / (f"{stamp}-{verb}" + (f"-{number}" if number > 1 else ""))
