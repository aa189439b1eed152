"""A model at an address (a run, or a folder or file of weights), copied to the local cache. No torch.

A run's checkpoints stay where they are. The least recently used copies are removed when all together exceed
$VITRINE_CACHE_GB.
"""

import contextlib
import hashlib
import os
import re
import shutil
import time
from pathlib import Path, PurePosixPath

from vitrine.errors import CheckpointError, ConfigError, MissingCheckpointError
from vitrine.runtime.block_cache import limit_bytes
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.locks import wait_for_lock
from vitrine.runtime.places import is_remote, open_folder, place_exists
from vitrine.runtime.remote_run import as_checkpoint_errors, download_files
from vitrine.runtime.remote_store import remote_stamp, walk_remote
from vitrine.runtime.run_address import WORKING, key_of
from vitrine.runtime.run_folder import MODEL, RECORD, RunFolder
from vitrine.runtime.run_manifest import MANIFEST, Manifest, read_manifest
from vitrine.spelling import printable

COPIES = "models-at-addresses"
# Files of a run that are not needed to use its model.
_LEFT_THERE = ("checkpoints/", "sweep/", "folds/", "tensorboard/", "wandb/", "pictures/")
_CONFIG = "config.json"
_KEEP_SECONDS = 3600.0


def is_address(model: str | Path) -> bool:
    """Whether a model is named by an address of a store; URLs and hub ids are handled elsewhere."""
    return isinstance(model, str) and is_remote(model) and not re.match(r"https?://|hf-hub:", model)


def names_model(address: str) -> bool:
    """Whether there is a run or a folder of weights at an address."""
    return any(place_exists(f"{address.rstrip('/')}/{name}") for name in (MANIFEST, RECORD, _CONFIG))


def fetch_model(address: str) -> Path:
    """Copy the run, the folder or the file of weights at an address to the cache, unless it is there."""
    address = address.rstrip("/")
    folder, _, name = address.rpartition("/")
    with as_checkpoint_errors():
        manifest = read_manifest(open_folder(address))
        if manifest is not None:
            return _copied(address, manifest)
        if name == MODEL and (manifest := read_manifest(open_folder(folder))) is not None:
            return RunFolder(_copied(folder, manifest)).model
        if place_exists(address):
            _, stamp = remote_stamp(address)
            return _downloaded(folder, {name: name}, stamp=stamp) / name
        files = dict(_files_of_model(address)) if names_model(address) else {}
        if not files:
            raise MissingCheckpointError(f"there is no run and no folder of weights at {printable(address)}")
        stamp = repr([(name, remote_stamp(f"{address}/{name}")) for name in files])
        return _downloaded(address, files, stamp=stamp)


def _files_of_model(address: str) -> list[tuple[str, str]]:
    """List the files of a run or model that was copied to an address without a manifest."""
    return [
        (name, name)
        for name, _ in sorted(walk_remote(address))
        if not name.startswith(_LEFT_THERE) and ".." not in PurePosixPath(name).parts
    ]


def _copied(address: str, manifest: Manifest) -> Path:
    """Copy the files that a manifest names, except for checkpoints."""
    files = {name: entry for name, entry in manifest.files.items() if not name.startswith(_LEFT_THERE)}
    if not files:
        raise ConfigError(f"the run at {printable(address)} has not written anything yet")
    folder = _folder_of(address, repr(sorted(files.items())))
    with wait_for_lock(folder):
        download_files(files, open_folder(address), folder, what=f"Downloading {printable(address)}")
    _used(folder)
    return folder


def _downloaded(address: str, files: dict[str, str], *, stamp: str) -> Path:
    """Copy files whose checksums are unknown: they are complete once the folder has its final name."""
    folder, store = _folder_of(f"{address}/{' '.join(files)}", stamp), open_folder(address)
    with wait_for_lock(folder):
        if not folder.is_dir():
            fresh = folder.with_name(f".{folder.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            for name, at in files.items():
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                store.get(at, fresh / name)
            fresh.rename(folder)
    _used(folder)
    return folder


def _folder_of(address: str, version: str) -> Path:
    digest = hashlib.sha256(version.encode()).hexdigest()[:12]
    return cache_folder() / COPIES / f"{key_of(address)}-{digest}"


def _used(folder: Path) -> None:
    """Mark a copy as used, and remove others while all together are too large."""
    os.utime(folder)
    make_room(keep=folder)


def make_room(*, keep: Path, limit: int | None = None, idle_seconds: float = _KEEP_SECONDS) -> None:
    """Remove the copies and working folders used least recently until the rest fits the limit; never a recent one."""
    limit = limit_bytes() if limit is None else limit
    folders = [
        path for base in (COPIES, WORKING) for path in (cache_folder() / base).glob("[!.]*") if path.is_dir()
    ]
    sizes = {folder: _size(folder) for folder in folders}
    total, now = sum(sizes.values()), time.time()
    for folder in sorted(folders, key=_last_use):
        if total <= limit:
            return
        if folder == keep or now - _last_use(folder) < idle_seconds or _is_training(folder):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        total -= sizes[folder]


def _last_use(folder: Path) -> float:
    return max(
        (file.stat().st_mtime for file in (folder, RunFolder(folder).metrics_file) if file.exists()),
        default=0.0,
    )


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


def _is_training(folder: Path) -> bool:
    if folder.parent.name != WORKING:
        return False
    try:
        with RunFolder(folder).locked():
            return False
    except (ConfigError, CheckpointError):
        return True
