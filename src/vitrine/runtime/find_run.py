"""Find a training run by its folder, by `runs/latest`, or by the model that it trained. No torch."""

import os
from contextlib import suppress
from pathlib import Path

from vitrine.errors import ConfigError, TryVerb
from vitrine.runtime.remote_model import fetch_model, is_address
from vitrine.runtime.run_folder import RECORD, RunFolder
from vitrine.spelling import near_match

LATEST = "latest"
"""The name that stands for the newest training run of a folder."""


def find_run(named: str | Path) -> RunFolder:
    """Return the run folder of this name; `runs/latest` is the run in `runs` that was trained last."""
    if is_address(named):
        return RunFolder(fetch_model(str(named)))
    path = Path(named)
    if path.name == LATEST and not path.exists():
        return latest_run(path.parent)
    path = Path(resolve_latest(str(path)))
    if not RunFolder(path).is_run:
        hint, suggestions = _suggestion(path)
        raise ConfigError(f"{path} is not the folder of a training run{hint}", suggestions=suggestions)
    return RunFolder(path)


def latest_run(parent: Path) -> RunFolder:
    """Return the run below `parent` that was trained last."""
    runs = runs_in(parent)
    if not runs:
        raise ConfigError(
            f"{parent} holds no training run yet", advice=[TryVerb("finetune", ("DATA",), "to start one")]
        )
    return max(runs, key=RunFolder.trained_at)


def runs_in(parent: Path) -> list[RunFolder]:
    """Return the runs whose folders lie in `parent`."""
    return [RunFolder(path.parent) for path in parent.glob(f"*/{RECORD}") if not path.parent.is_symlink()]


def run_of_model(model: str | Path) -> RunFolder | None:
    """Return the run that a model was trained by, given its folder or the folder `model/` in it; None without one."""
    path = fetch_model(str(model)) if is_address(model) else Path(model)
    if path.name == LATEST and not path.exists():
        runs = runs_in(path.parent)
        return max(runs, key=RunFolder.trained_at) if runs else None
    for run in (RunFolder(path), RunFolder(path.parent)):
        if run.is_run:
            return run if run.recipe_file.exists() else None
    return None


def resolve_latest(model: str) -> str:
    """Replace `runs/latest` by the run that it names now, before another run becomes the latest."""
    path = Path(model)
    if path.name != LATEST:
        return model
    if path.is_symlink() and path.exists():
        return str(path.parent / os.readlink(path))  # noqa: PTH115 (relative to the folder, not to this one)
    return model if path.exists() or not runs_in(path.parent) else str(latest_run(path.parent).path)


def link_latest(run: RunFolder) -> None:
    """Make `runs/latest` a link to a starting run, if its folder is in `runs`; some systems have no links."""
    parent = run.path.parent
    link, temporary = parent / LATEST, parent / f".{LATEST}-{os.getpid()}"
    if parent.name != "runs" or (link.exists() and not link.is_symlink()):
        return
    with suppress(OSError):
        temporary.symlink_to(run.path.name, target_is_directory=True)
        temporary.replace(link)


def _suggestion(named: Path) -> tuple[str, list[str]]:
    """Name the run that may have been meant: the one around `named`, the newest in it, or one with a similar name."""
    if RunFolder(named.parent).is_run:
        return f"; did you mean {named.parent}?", [str(named.parent)]
    if runs_in(named):
        return f"; did you mean {named / LATEST}?", [str(named / LATEST)]
    beside = [run.path.name for run in runs_in(named.parent)]
    close = near_match(named.name, [*beside, LATEST] if beside else [])
    if close is not None:
        return f"; did you mean {named.parent / close}?", [str(named.parent / close)]
    if runs_in(Path("runs")):
        return f"; the newest one is {Path('runs') / LATEST}", [str(Path("runs") / LATEST)]
    latest = named.parent / LATEST
    return (f"; the newest one there is {latest}", [str(latest)]) if beside else ("", [])
