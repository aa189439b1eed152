"""Bring a data set from the Hugging Face hub, with progress, checksums and resume.

The hub's own client finds the files; they are brought here, because it starts a file anew after an
interruption. A file goes on where it stopped, and takes its name only once its SHA-256 is the hub's.
"""

import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vitrine.errors import DataError, MissingExtraError
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.files import sha256_of
from vitrine.runtime.progress import track
from vitrine.runtime.turns import taking_turns

_PIECE = 2**20
_ATTEMPTS = 4
_PATIENCE_SECONDS = 30


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
    try:
        facts = client.HfApi(endpoint=endpoint).dataset_info(
            repository, revision=revision, files_metadata=True
        )
    except Exception as error:  # the client's errors are many; each says what happened in its first line
        raise DataError(f"cannot reach the set {repository} on the hub: {_first_line(error)}") from error
    files = [file for file in facts.siblings or () if _is_wanted(file.rfilename, config)]
    if not files:
        raise DataError(f"the set {repository} has no Parquet files; only such sets can be read from the hub")
    commit = facts.sha or revision
    folder = (cache or cache_folder() / "hub") / repository.replace("/", "--") / commit
    for file in files:
        address = client.hf_hub_url(
            repository, file.rfilename, repo_type="dataset", revision=commit, endpoint=endpoint
        )
        bring(
            address,
            folder / file.rfilename,
            size=file.size,
            sha256=file.lfs.sha256 if file.lfs else None,
            headers=client.utils.build_hf_headers(),
        )
    parents = {(folder / file.rfilename).parent for file in files}
    return parents.pop() if len(parents) == 1 else folder


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
    with taking_turns(part):
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


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
