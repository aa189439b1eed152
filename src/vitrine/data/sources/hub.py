"""Bring a data set from the Hugging Face hub, with progress, checksums and resume.

The hub's own client finds the files; they are brought here, because it starts a file anew after an
interruption. A file goes on where it stopped, and takes its name only once its SHA-256 is the hub's. What was
brought is noted beside it, so that a set can be opened again where the hub cannot be reached.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from vitrine.data.sources import parquet
from vitrine.data.sources.source import Source
from vitrine.errors import DataError, MissingExtraError
from vitrine.runtime.cache import cache_folder, is_offline, why_offline
from vitrine.runtime.files import sha256_of, write_atomically
from vitrine.runtime.locks import wait_for_lock
from vitrine.runtime.progress import notice, track

PREFIX = "hub:"


def recognises(address: str) -> bool:
    """Take addresses that begin with `hub:`."""
    return address.startswith(PREFIX)


def open_all(address: str) -> dict[str, Source]:
    """Bring the set's Parquet files to the local cache and open them; `?config=NAME&label=NAME` if need be."""

    place, mark, query = address.removeprefix(PREFIX).partition("?")
    repository, _, revision = place.partition("@")
    config = dict(parse_qsl(query)).get("config")
    folder = fetch_dataset(repository, revision=revision or "main", config=config)
    splits = parquet.open_all(f"{folder}{mark}{query}")
    for source in splits.values():
        source.address = address
    return splits


_PIECE = 2**20
_ATTEMPTS = 4
_PATIENCE_SECONDS = 30
_NOTE = "brought.json"


def fetch_dataset(
    repository: str,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    cache: Path | None = None,
    config: str | None = None,
) -> Path:
    """Bring the Parquet files of a data set into the cache and return their folder.

    Files that are there already, whole, are not brought again. `endpoint` is $HF_ENDPOINT or the hub itself,
    `cache` is a folder of vitrine's cache; `config` is the set's, if it has several.
    """
    client = _client()
    if repository.count("/") != 1:
        raise DataError(f"a set on the hub is named owner/name, got {repository!r}")
    endpoint = endpoint or os.environ.get("HF_ENDPOINT") or None
    own = (cache or cache_folder() / "hub") / repository.replace("/", "--")
    if is_offline():
        kept = _kept_copy(own, revision=revision, config=config)
        if kept is None:
            reason, advice = why_offline()
            raise DataError(f"the set {repository} is not in the cache and {reason}", advice=advice)
        return _common_folder(kept, _noted(kept)["files"])
    try:
        facts = client.HfApi(endpoint=endpoint).dataset_info(
            repository, revision=revision, files_metadata=True
        )
    except Exception as error:  # the client's errors are many; each says what happened in its first line
        # A server that answers has the last word; only where none does, a copy of earlier will do.
        kept = None
        if not isinstance(error, client.errors.HfHubHTTPError):
            kept = _kept_copy(own, revision=revision, config=config)
        if kept is None:
            raise DataError(f"cannot reach the set {repository} on the hub: {_first_line(error)}") from error
        notice(f"The hub cannot be reached: {repository} as it was brought earlier ({kept.name[:12]})")
        return _common_folder(kept, _noted(kept)["files"])
    files = [file for file in facts.siblings or () if _is_wanted(file.rfilename, config)]
    if not files:
        raise DataError(f"the set {repository} has no Parquet files; only such sets can be read from the hub")
    commit = facts.sha or revision
    for file in files:
        if not _stays_inside(file.rfilename):
            raise DataError(f"the set {repository} names a file outside its folder: {file.rfilename!r}")
        address = client.hf_hub_url(
            repository, file.rfilename, repo_type="dataset", revision=commit, endpoint=endpoint
        )
        bring(
            address,
            own / commit / file.rfilename,
            size=file.size,
            sha256=file.lfs.sha256 if file.lfs else None,
            headers=client.utils.build_hf_headers(),
        )
    sizes = {file.rfilename: file.size for file in files}
    with write_atomically(own / commit / _NOTE, mode="w") as note:
        json.dump({"revision": revision, "config": config, "files": sizes}, note)
    return _common_folder(own / commit, sizes)


def _common_folder(folder: Path, names: Iterable[str]) -> Path:
    parents = {(folder / name).parent for name in names}
    return parents.pop() if len(parents) == 1 else folder


def _kept_copy(own: Path, *, revision: str, config: str | None) -> Path | None:
    """Return the folder of what was last brought under these words, if all of it is still there."""

    def fits(folder: Path) -> bool:
        noted = _noted(folder)
        return (
            revision in (noted["revision"], folder.name)
            and noted["config"] == config
            and all(_is_whole(folder / name, size) for name, size in noted["files"].items())
        )

    found = sorted(own.glob(f"*/{_NOTE}"), key=lambda note: note.stat().st_mtime, reverse=True)
    return next((note.parent for note in found if fits(note.parent)), None)


def _noted(folder: Path) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads((folder / _NOTE).read_text())
    return noted


def bring(
    address: str,
    path: Path,
    *,
    size: int | None,
    sha256: str | None,
    headers: dict[str, str] | None = None,
) -> Path:
    """Bring one file to `path`, going on where an earlier attempt stopped; refuse it if its SHA-256 differs."""
    if _is_whole(path, size):
        return path
    part = path.with_name(path.name + ".part")
    # Two processes that went on with one file would each write over what the other has brought.
    with wait_for_lock(part):
        if _is_whole(path, size):  # another process has brought it meanwhile
            return path
        for _ in range(2):
            _bring_rest(address, part, size=size, headers=headers or {})
            if sha256 is None or sha256_of(part) == sha256:
                return part.replace(path)
            part.unlink()  # what was there before may have been of another version: once more from the start
    raise DataError(f"{path.name} came twice with another SHA-256 than the hub's; try again later")


def _is_whole(path: Path, size: int | None) -> bool:
    return path.is_file() and (size is None or path.stat().st_size == size)


def _bring_rest(address: str, part: Path, *, size: int | None, headers: dict[str, str]) -> None:
    opener = urllib.request.build_opener(_KeepSecrets)
    for attempt in range(_ATTEMPTS):
        have = part.stat().st_size if part.is_file() else 0
        if size is not None and have == size:
            return
        if size is not None and have > size:
            part.unlink()
            have = 0
        asked = headers | ({"Range": f"bytes={have}-"} if have else {})
        try:
            with opener.open(
                urllib.request.Request(address, headers=asked), timeout=_PATIENCE_SECONDS
            ) as answer:
                is_rest = answer.status == 206
                total = None if size is None else -(-(size - have) // _PIECE)
                with part.open("ab" if is_rest else "wb") as file:
                    pieces = iter(lambda: answer.read(_PIECE), b"")
                    for piece in track(pieces, f"Bringing {part.stem} (MiB)", total=total):
                        file.write(piece)
            if size is None or part.stat().st_size == size:
                return
        except urllib.error.HTTPError as error:
            raise DataError(f"cannot bring {address}: the server says {error.code} {error.reason}") from error
        except OSError as error:
            if attempt == _ATTEMPTS - 1:
                raise DataError(f"cannot bring {address}: {_first_line(error)}") from error
            time.sleep(0.2 * 2**attempt)
    raise DataError(f"cannot bring {address}: it ends before its {size} bytes; try again to go on")


class _KeepSecrets(urllib.request.HTTPRedirectHandler):
    """Follows the hub to its storage without telling that the user's token."""

    def redirect_request(  # noqa: PLR0917 (the parameters are its parent's)
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            request.remove_header("Authorization")
        return request


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("huggingface-hub", extra="hub", purpose="bringing a set") from error
    return huggingface_hub


def _is_wanted(name: str, config: str | None) -> bool:
    folder = name.rpartition("/")[0]
    return name.endswith(".parquet") and (config is None or folder in (config, f"data/{config}"))


def _stays_inside(name: str) -> bool:
    """Whether a name that a server gave lies in the folder that it is put into."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and ":" not in name


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
