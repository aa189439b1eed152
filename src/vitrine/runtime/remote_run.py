"""Keep a run at an address: its local working folder is published there, and fetched to resume. No torch.

Every publication uploads changed files and then writes the manifest, so a kill at any moment leaves the run as last
published. By the manifest's token, a process notices that another one has continued the same run.
"""

import dataclasses
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrine.errors import CheckpointError, ConfigError, DataError, TryOption
from vitrine.runtime.cache import typed_by_user
from vitrine.runtime.files import is_temporary, move_into_place, sha256_of
from vitrine.runtime.locks import wait_for_lock
from vitrine.runtime.places import Folder, is_remote, open_folder
from vitrine.runtime.progress import track
from vitrine.runtime.remote_store import walk_remote
from vitrine.runtime.run_address import (
    WorkingState,
    read_state,
    root_of,
    state_file,
    working_folder,
    write_state,
)
from vitrine.runtime.run_manifest import MANIFEST, VERSIONS, Entry, Manifest, read_manifest, write_manifest
from vitrine.spelling import printable

# Files up to this size are read into memory, so that the hashed bytes are uploaded even if the file grows meanwhile.
_SMALL_BYTES = 32 * 2**20
# Names of files that are being downloaded, and of the checkpoint before the last (training/saving.py), which a
# complete publication does not need.
_DOWNLOAD, _OLDER = ".download", (".old", ".new")


def begin_remote_run(address: str, *, may_replace: bool) -> Path:
    """Create an empty working folder for a new run at an address; replace an earlier run only if `may_replace`."""
    store, folder = _store(address), working_folder(address)
    with wait_for_lock(folder), as_checkpoint_errors():
        before = read_manifest(store)
        if before is not None and before.files and not may_replace:
            raise ConfigError(
                f"{printable(address)} already holds a run; choose another address",
                option="out",
                advice=[TryOption("overwrite", "to replace it", True)],
            )
        _forget(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        empty = Manifest(token=_new_token(), files={})
        write_manifest(store, empty)  # fails here if the address is not writable
        _remove(store, set() if before is None else before.used)
        _remove_versions(store, empty)
        write_state(folder, WorkingState(address=store.address, token=empty.token))
    return folder


def discard_remote_run(path: Path) -> None:
    """Remove the manifest of a run that was started at an address and never wrote a file."""
    folder = root_of(path)
    state = None if folder is None else read_state(folder)
    if folder is not None and state is not None:
        with as_checkpoint_errors():
            open_folder(state.address).remove(MANIFEST)
        _forget(folder)


def fetch_run(address: str, *, takes_over: bool = False) -> Path:
    """Update the working folder of a run to the published state, unless that state was published from this folder.

    With `takes_over`, a process that has continued the run so far can no longer publish.
    """
    store, folder = _store(address), working_folder(address)
    with wait_for_lock(folder), as_checkpoint_errors():
        manifest = read_manifest(store)
        if manifest is None or not manifest.files:
            raise ConfigError(f"{printable(address)} is not the address of a training run")
        state = read_state(folder)
        if state is None or not state.knows(manifest.token):
            _forget(folder)
            _download_into(folder, store, manifest)
            state = WorkingState(address=store.address, token=manifest.token, stats=_stats(folder))
        if takes_over:
            manifest = Manifest(token=_new_token(), files=manifest.files)
            write_manifest(store, manifest)
            _remove_versions(store, manifest)
            state = WorkingState(address=store.address, token=manifest.token, stats=state.stats)
        write_state(folder, state)
    return folder


def publish_run(path: Path, *, is_final: bool = False) -> None:
    """Upload what has changed in the working folder that `path` is in; nothing for any other path.

    After the final publication, every file has its own name.
    """
    folder = root_of(path)
    state = None if folder is None else read_state(folder)
    if folder is None or state is None:
        return
    with as_checkpoint_errors():
        store = open_folder(state.address)
        published, state = _published(folder, store, state)
        if is_final and any(name != entry.at for name, entry in published.files.items()):
            _published(folder, store, state, moves_versions=True)


def _published(
    folder: Path, store: Folder, state: WorkingState, *, moves_versions: bool = False
) -> tuple[Manifest, WorkingState]:
    """Upload new and changed files, write the manifest, then remove files that it no longer names."""
    before = read_manifest(store)
    if before is None or not state.knows(before.token):
        raise ConfigError(
            f"another process has continued the run at {printable(store.address)}; this one stops without changing it"
        )
    stats, files = _stats(folder), dict[str, Entry]()
    for name, stat in stats.items():
        known = before.files.get(name)
        if moves_versions and known is not None and known.at != name:
            known = None
        if known is not None and state.stats.get(name) == stat:
            files[name] = known
        else:
            files[name] = _uploaded(folder / name, name, store, before, known)
    after = before
    if files != dict(before.files):
        after = Manifest(token=_new_token(), files=files)
        write_state(folder, dataclasses.replace(state, token=before.token, pending=after.token))
        write_manifest(store, after)
        _remove(store, before.used - after.used)
    state = WorkingState(address=state.address, token=after.token, stats=stats)
    write_state(folder, state)
    return after, state


def _uploaded(file: Path, name: str, store: Folder, before: Manifest, known: Entry | None) -> Entry:
    """Upload a file under a new name, unless its content is there already."""
    size = file.stat().st_size
    content = file.read_bytes() if size <= _SMALL_BYTES else None
    digest = sha256_of(file) if content is None else hashlib.sha256(content).hexdigest()
    if known is not None and known.sha256 == digest:
        return known
    at = before.place_for(name, digest)
    if content is None:
        store.put(file, at)
    else:
        with store.writing(at) as opened:
            opened.write(content)
    return Entry(at=at, bytes=size if content is None else len(content), sha256=digest)


def download_files(files: dict[str, Entry], store: Folder, folder: Path, *, what: str) -> None:
    """Download files of a manifest into a folder, and compare their checksums; existing ones are kept."""
    for name, entry in track(sorted(files.items()), what):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file() and target.stat().st_size == entry.bytes and sha256_of(target) == entry.sha256:
            continue
        fresh = target.with_name(f".{target.name}{_DOWNLOAD}")
        try:
            store.get(entry.at, fresh)
        except FileNotFoundError:
            raise CheckpointError(f"{printable(store.address)}/{entry.at} is missing") from None
        if sha256_of(fresh) != entry.sha256:
            raise CheckpointError(f"{printable(store.address)}/{entry.at} is not the file that was uploaded")
        move_into_place(fresh, target)


def _download_into(folder: Path, store: Folder, manifest: Manifest) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in _stats(folder, with_all=True):
        if name not in manifest.files:
            (folder / name).unlink()
    download_files(dict(manifest.files), store, folder, what=f"Downloading {printable(store.address)}")


def _stats(folder: Path, *, with_all: bool = False) -> dict[str, tuple[int, int]]:
    """Return bytes and time of every file of a run; without locks, incomplete files and older checkpoints."""
    stats = {}
    for parent, folders, names in os.walk(folder):
        if not with_all:
            folders[:] = [name for name in folders if _is_of_run(name)]
        for name in names:
            file = Path(parent) / name
            if (with_all or _is_of_run(name)) and not file.is_symlink():
                with suppress(FileNotFoundError):  # it has just been replaced
                    stat = file.stat()
                    stats[file.relative_to(folder).as_posix()] = (stat.st_size, stat.st_mtime_ns)
    return dict(sorted(stats.items()))


def _is_of_run(name: str) -> bool:
    is_lock = name.startswith(".") and name.endswith((".lock", _DOWNLOAD))
    return not (is_lock or is_temporary(name) or name.endswith(_OLDER))


def _remove(store: Folder, names: set[str]) -> None:
    for name in sorted(names):
        store.remove(name)


def _remove_versions(store: Folder, manifest: Manifest) -> None:
    """Remove the leftovers of killed publications."""
    versions = {f"{VERSIONS}/{name}" for name, _ in walk_remote(f"{store.address}/{VERSIONS}")}
    _remove(store, versions - manifest.used)


def _forget(folder: Path) -> None:
    state_file(folder).unlink(missing_ok=True)


def _new_token() -> str:
    return secrets.token_hex(16)


def _store(address: str) -> Folder:
    assert is_remote(address)
    return open_folder(address)


@contextmanager
def as_checkpoint_errors() -> Iterator[None]:
    """Report an unreachable store like a checkpoint that cannot be saved: a run may continue without it."""
    try:
        with typed_by_user():
            yield
    except DataError as error:
        raise CheckpointError(error.problem, advice=error.advice) from error
