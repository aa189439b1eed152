"""Bring a data set from the Hugging Face hub, with progress, checksums and resume."""

import hashlib
import os
from pathlib import Path
from typing import Any

from vitrine.errors import DataError, MissingExtraError
from vitrine.runtime.progress import track


def fetch_dataset(
    repository: str,
    *,
    revision: str = "main",
    endpoint: str | None = None,
    cache: Path | None = None,
    config: str | None = None,
) -> Path:
    """Bring the Parquet files of a data set into the cache and return their folder.

    Files that are there already, whole, are not brought again; one that was interrupted goes on where it
    stopped. Each is compared with the hub's SHA-256. `endpoint` is $HF_ENDPOINT, or the hub itself.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(
            "huggingface-hub", extra="hub", purpose="bringing a set from the hub"
        ) from error
    if repository.count("/") != 1:
        raise DataError(f"a set on the hub is named owner/name, got {repository!r}")
    endpoint = endpoint or os.environ.get("HF_ENDPOINT") or None
    api = huggingface_hub.HfApi(endpoint=endpoint)
    try:
        facts = api.dataset_info(repository, revision=revision, files_metadata=True)
    except Exception as error:  # the client's errors are many; each says what happened in its first line
        raise DataError(f"cannot reach the set {repository} on the hub: {_first_line(error)}") from error
    files = [file for file in facts.siblings or () if _is_wanted(file.rfilename, config)]
    if not files:
        raise DataError(f"the set {repository} has no Parquet files; only such sets can be read from the hub")
    folder: Path | None = None
    for file in track(files, f"Bringing {repository}"):
        path = _bring(
            huggingface_hub, repository, file, commit=facts.sha or revision, endpoint=endpoint, cache=cache
        )
        folder = path.parent
    assert folder is not None
    return folder


def _bring(
    client: Any, repository: str, file: Any, *, commit: str, endpoint: str | None, cache: Path | None
) -> Path:
    for is_second in (False, True):
        try:
            path = Path(
                client.hf_hub_download(
                    repository,
                    file.rfilename,
                    repo_type="dataset",
                    revision=commit,
                    endpoint=endpoint,
                    cache_dir=cache,
                    force_download=is_second,
                )
            )
        except Exception as error:
            raise DataError(f"cannot bring {file.rfilename} of {repository}: {_first_line(error)}") from error
        wanted = file.lfs.sha256 if file.lfs else None
        if wanted is None or _sha256(path) == wanted:
            return path
    raise DataError(
        f"{file.rfilename} of {repository} came twice with another SHA-256 than the hub's; try again later"
    )


def _is_wanted(name: str, config: str | None) -> bool:
    folder = name.rpartition("/")[0]
    return name.endswith(".parquet") and (config is None or folder in (config, f"data/{config}"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
