"""Where a command writes: a new dated folder under ./runs, or the one that the user names; never into data."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from vitrine.errors import ConfigError, VitrineError
from vitrine.spelling import near_match

LATEST = "latest"
"""Stands for the newest training run of a folder."""


def new_run_folder(
    named: Path | None,
    *,
    verb: str,
    files: Iterable[str],
    never_in: Iterable[Path] = (),
    is_overwriting: bool = False,
) -> Path:
    """Choose and make the folder for the results of `verb`, which will write `files` there.

    Refuses a folder inside any of `never_in`, and one that already holds one of the files.
    """
    folder = named if named is not None else _dated(verb)
    for data in never_in:
        if is_inside(folder, data):
            raise ConfigError(
                f"{folder} lies in the data set {data}, where nothing is ever written; "
                "name a folder outside it with --out"
            )
    present = [] if named is None else [name for name in files if (folder / name).exists()]
    if present and not is_overwriting:
        raise ConfigError(
            f"{folder} already holds {present[0]}; name another folder with --out, or give --overwrite"
        )
    try:
        if named is None:
            return _new_dated(verb)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder {folder}: {error.strerror}; name another with --out"
        ) from error
    return folder


@contextmanager
def leaving_nothing(folder: Path) -> Iterator[None]:
    """Take a folder away again where the block fails or is interrupted before anything was written there."""
    try:
        yield
    except (VitrineError, KeyboardInterrupt):
        with suppress(OSError):  # it holds something
            folder.rmdir()
        raise


def find_run(named: Path) -> Path:
    """Return a training run's folder; `runs/latest` is the one beside it that was trained last."""
    if named.name == LATEST and not named.exists():
        found = [path.parent for path in named.parent.glob("*/run.json")]
        if not found:
            raise ConfigError(
                f"{named.parent} holds no training run yet; start one with: vitrine finetune DATA"
            )
        return max(found, key=_last_trained)
    if not (named / "run.json").exists():
        raise ConfigError(f"{named} is not the folder of a training run{_meant(named)}")
    return named


def by_its_own_name(model: str) -> str:
    """Return the folder that `runs/latest` means now, for what is still read when another run is the latest."""
    path = Path(model)
    if path.name != LATEST or path.exists() or not any(path.parent.glob("*/run.json")):
        return model
    return str(find_run(path))


def _meant(named: Path) -> str:
    """Say which run may have been meant: the one that holds `named`, the newest in it, or one spelt like it."""
    if (named.parent / "run.json").exists():
        return f"; did you mean {named.parent}?"
    if any(named.glob("*/run.json")):
        return f"; did you mean {named / LATEST}?"
    beside = [path.parent.name for path in named.parent.glob("*/run.json")]
    close = near_match(named.name, [*beside, LATEST] if beside else [])
    if close is not None:
        return f"; did you mean {named.parent / close}?"
    if any(Path("runs").glob("*/run.json")):
        return f"; the newest one is {Path('runs') / LATEST}"
    return "" if not beside else f"; the newest one there is {named.parent / LATEST}"


def _last_trained(run: Path) -> float:
    # Not the folder's own time: a report that is written again makes no run a newer one.
    return max(path.stat().st_mtime for path in (run / "run.json", run / "metrics.jsonl") if path.exists())


def is_inside(path: Path, data: Path) -> bool:
    """Whether `path` is `data` or below it, links followed; beside a single file is not inside it."""
    root = os.path.realpath(data)
    return os.path.commonpath([root, os.path.realpath(path)]) == root


def _new_dated(verb: str) -> Path:
    """Make a folder that nobody else has, whoever starts in the same second."""
    Path("runs").mkdir(exist_ok=True)
    number = 1
    while True:
        folder = _dated(verb, number)
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def _dated(verb: str, number: int = 1) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    return Path("runs") / (f"{stamp}-{verb}" + (f"-{number}" if number > 1 else ""))
