"""The manifest of a run at an address: its files, their checksums, and where each of them lies. No torch.

The manifest is written last. A file that it names is never overwritten: a new version is written under `_versions/`
until a later manifest names it, so a reader of a manifest finds every file as it was when the manifest was written.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from vitrine.errors import CheckpointError
from vitrine.runtime.files import json_text, parse_json
from vitrine.runtime.places import Folder
from vitrine.spelling import printable

MANIFEST, VERSIONS = "run-files.json", "_versions"
_FORMAT, _DIGITS = 1, 16


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of a run."""

    at: str
    """Its path below the address: under its own name, or as a version."""
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All files of a run at one moment."""

    token: str
    """Unique to this manifest: a process that finds another token knows that another process has written."""
    files: Mapping[str, Entry]

    @property
    def used(self) -> set[str]:
        """The paths of the files."""
        return {entry.at for entry in self.files.values()}

    def place_for(self, name: str, sha256: str) -> str:
        """Return a path for a new version of a file that overwrites none of the named files."""
        return name if name not in self.used else f"{VERSIONS}/{sha256[:_DIGITS]}/{name}"


def read_manifest(store: Folder) -> Manifest | None:
    """Read the manifest of a run; None if there is none."""
    content = store.read(MANIFEST)
    if content is None:
        return None
    try:
        values: dict[str, Any] = parse_json(content)
        number = int(values["run_files"])
        files = {str(name): Entry(**entry) for name, entry in values["files"].items()}
        for name, entry in files.items():
            _require_inside(name)
            _require_inside(entry.at)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{printable(store.address)}/{MANIFEST} is damaged: {error}") from None
    if number != _FORMAT:
        raise CheckpointError(f"{printable(store.address)} was written by a later version of Vitrine")
    return Manifest(token=str(values["token"]), files=files)


def write_manifest(store: Folder, manifest: Manifest) -> None:
    """Write the manifest in one step; from then on its files are the run."""
    files = {name: asdict(entry) for name, entry in sorted(manifest.files.items())}
    values = {"run_files": _FORMAT, "token": manifest.token, "files": files}
    with store.writing(MANIFEST) as file:
        file.write(json_text(values, indent=1).encode())


def _require_inside(name: str) -> None:
    """Refuse a name that leads out of the folder: a manifest may come from elsewhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name or ":" in path.parts[0]:
        raise ValueError(f"it names the file {name!r}")
