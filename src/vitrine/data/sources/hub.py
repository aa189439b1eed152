"""Download a data set from the Hugging Face hub, with progress, checksums and resume.

The hub's own client lists the files; `runtime/download.py` downloads them, because the client starts a file again
after an interruption. A note beside the files lists what was downloaded, so that a set can be opened again without
the hub.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl

from vitrine.data.sources import parquet
from vitrine.data.sources.source import Source
from vitrine.errors import DataError, DownloadError, MissingExtraError
from vitrine.runtime.cache import cache_folder, is_offline, why_offline
from vitrine.runtime.download import download
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import notice

PREFIX = "hub:"


def recognises(address: str) -> bool:
    """Accept addresses that begin with `hub:`."""
    return address.startswith(PREFIX)


def open_all(address: str) -> dict[str, Source]:
    """Download the Parquet files of the set into the cache and open them; `?config=NAME&label=NAME` if needed."""

    place, mark, query = address.removeprefix(PREFIX).partition("?")
    repository, _, revision = place.partition("@")
    config = dict(parse_qsl(query)).get("config")
    folder = fetch_dataset(repository, revision=revision or "main", config=config)
    splits = parquet.open_all(f"{folder}{mark}{query}")
    for source in splits.values():
        source.address = address
    return splits


_NOTE = "brought.json"


def fetch_dataset(
    repository: str,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    cache: Path | None = None,
    config: str | None = None,
) -> Path:
    """Download the Parquet files of a data set into the cache and return their folder.

    Files that are already complete are not downloaded again. `endpoint` is $HF_ENDPOINT or the hub itself,
    `cache` is a folder of vitrine's cache; `config` is one of the set's, if it has several.
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
    except Exception as error:  # the client raises many kinds; the first line of each tells what happened
        # An earlier copy is used only if no server answers: an answer is final.
        kept = None
        if not isinstance(error, client.errors.HfHubHTTPError):
            kept = _kept_copy(own, revision=revision, config=config)
        if kept is None:
            raise DataError(f"cannot reach {repository} on the hub: {_first_line(error)}") from error
        notice(f"The hub cannot be reached: using {repository} as downloaded earlier ({kept.name[:12]})")
        return _common_folder(kept, _noted(kept)["files"])
    folder = own / (facts.sha or revision)
    files = [file for file in facts.siblings or () if _is_wanted(file.rfilename, config)]
    if not files:
        raise DataError(f"the set {repository} has no Parquet files; only such sets can be read from the hub")
    _download_all(client, repository, files, folder=folder, endpoint=endpoint)
    sizes = {file.rfilename: file.size for file in files}
    with write_atomically(folder / _NOTE, mode="w") as note:
        json.dump({"revision": revision, "config": config, "files": sizes}, note)
    return _common_folder(folder, sizes)


def _download_all(
    client: Any, repository: str, files: Iterable[Any], *, folder: Path, endpoint: str | None
) -> None:
    """Download the files of a set into the folder of its commit."""
    for file in files:
        if not _stays_inside(file.rfilename):
            raise DataError(f"the set {repository} names a file outside its folder: {file.rfilename!r}")
        address = client.hf_hub_url(
            repository, file.rfilename, repo_type="dataset", revision=folder.name, endpoint=endpoint
        )
        _download(
            address,
            folder / file.rfilename,
            size=file.size,
            sha256=file.lfs.sha256 if file.lfs else None,
            headers=client.utils.build_hf_headers(),
        )


def _common_folder(folder: Path, names: Iterable[str]) -> Path:
    parents = {(folder / name).parent for name in names}
    return parents.pop() if len(parents) == 1 else folder


def _kept_copy(own: Path, *, revision: str, config: str | None) -> Path | None:
    """Return the folder of the last download of this revision and config, if it is still complete."""

    def fits(folder: Path) -> bool:
        noted = _noted(folder)
        return (
            revision in (noted["revision"], folder.name)
            and noted["config"] == config
            and all(_is_whole(folder / name, size) for name, size in noted["files"].items())
        )

    notes = sorted(own.glob(f"*/{_NOTE}"), key=lambda note: note.stat().st_mtime, reverse=True)
    return next((note.parent for note in notes if fits(note.parent)), None)


def _noted(folder: Path) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads((folder / _NOTE).read_text())
    return noted


def _download(url: str, path: Path, *, size: int | None, sha256: str | None, headers: dict[str, str]) -> None:
    try:
        download(url, path, size=size, sha256=sha256, headers=headers)
    except DownloadError as error:
        raise DataError(error.problem, advice=error.advice) from None


def _is_whole(path: Path, size: int | None) -> bool:
    return path.is_file() and (size is None or path.stat().st_size == size)


def _client() -> Any:
    try:
        import huggingface_hub  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError("huggingface-hub", extra="hub", purpose="downloading a data set") from error
    return huggingface_hub


def _is_wanted(name: str, config: str | None) -> bool:
    folder = name.rpartition("/")[0]
    return name.endswith(".parquet") and (config is None or folder in (config, f"data/{config}"))


def _stays_inside(name: str) -> bool:
    """Whether a file name from a server stays inside the folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and ":" not in name


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
