"""Runs that are kept at an address: the local folder that is the working copy of each address. No torch.

A run at `s3://bucket/runs/x` is trained in a folder of the cache and published from there. Only folders of the cache
are ever published: a run folder from elsewhere cannot name an address to write to.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from vitrine.runtime.cache import cache_folder
from vitrine.runtime.files import json_text, parse_json, write_atomically

WORKING = "published-runs"
_KEY_DIGITS, _NAME_LENGTH = 16, 40
_STATE = ".json"


@dataclass(frozen=True, kw_only=True)
class WorkingState:
    """The local state of a run at an address."""

    address: str
    token: str
    """Token of the manifest that the working folder was fetched from or published as."""
    pending: str | None = None
    """Token of a manifest that was being written when this was saved; it may have arrived or not."""
    stats: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Size and time of the files at that moment, by name; unchanged files are not read again."""

    def knows(self, token: str) -> bool:
        """Whether a manifest is the one that this machine has fetched or written."""
        return token in {self.token, self.pending}


def key_of(address: str) -> str:
    """Return a short name that is unique to an address."""
    address = address.rstrip("/")
    digest = hashlib.sha256(address.encode()).hexdigest()[:_KEY_DIGITS]
    return f"{PurePosixPath(address).name[:_NAME_LENGTH]}-{digest}"


def working_folder(address: str) -> Path:
    """Return the folder of this machine in which the run at an address is trained."""
    return cache_folder() / WORKING / key_of(address)


def state_file(folder: Path) -> Path:
    """Return the path of the state of a working folder, beside the folder."""
    return folder.with_name(folder.name + _STATE)


def read_state(folder: Path) -> WorkingState | None:
    """Read the state of a working folder; None if it was never completely fetched or published."""
    try:
        values: dict[str, Any] = parse_json(state_file(folder).read_text(encoding="utf-8"))
        stats = {name: (int(size), int(time)) for name, (size, time) in values["stats"].items()}
        return WorkingState(
            address=str(values["address"]),
            token=str(values["token"]),
            pending=values.get("pending"),
            stats=stats,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(folder: Path, state: WorkingState) -> None:
    """Write the state of a working folder."""
    with write_atomically(state_file(folder), mode="w") as file:
        file.write(json_text(asdict(state)))


def root_of(path: Path) -> Path | None:
    """Return the working folder that a path is in, or is; None for any other path."""
    root = os.path.abspath(cache_folder() / WORKING)  # noqa: PTH100 (links stay as they are)
    inside = Path(os.path.relpath(os.path.abspath(path), root)).parts or (os.curdir,)  # noqa: PTH100
    if inside[0] in {os.curdir, os.pardir}:
        return None
    return Path(root) / inside[0]


def address_of(path: Path) -> str | None:
    """Return the address at which a path of a working folder is published; None for any other path."""
    root = root_of(path)
    state = None if root is None else read_state(root)
    if root is None or state is None:
        return None
    below = os.path.relpath(os.path.abspath(path), root)  # noqa: PTH100
    return state.address if below == os.curdir else f"{state.address}/{PurePosixPath(Path(below))}"


def shown_place(path: Path | str) -> str:
    """Format a path for people: as an address if it is the working copy of one."""
    return (address_of(path) if isinstance(path, Path) else None) or str(path)
