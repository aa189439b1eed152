"""Official files by their URL: with progress, resumed where they broke off, kept in a cache."""

import hashlib
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from vitrine.errors import CheckpointError
from vitrine.runtime.cache import cache_folder, is_offline, why_offline
from vitrine.runtime.locks import wait_for_lock
from vitrine.runtime.progress import track

CHUNK_BYTES = 1 << 20
TIMEOUT_SECONDS = 30
PARTIAL = 206


def download(url: str) -> Path:
    """Return the file of a URL, from the cache or the network."""
    name = Path(urllib.parse.urlparse(url).path).name or "weights"
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    path = cache_folder() / f"{key}-{name}"
    if path.is_file():
        return path
    if is_offline():
        reason, advice = why_offline()
        raise CheckpointError(
            f"{url} is not in the cache ({path.parent}) and {reason}, or give the path of a copy",
            advice=advice,
        )
    partial = path.with_name(path.name + ".part")
    # Two processes that went on with one file would each write over what the other has brought.
    with wait_for_lock(partial):
        if not path.is_file():
            _bring(url, partial)
            partial.replace(path)
    return path


def _bring(url: str, partial: Path) -> None:
    try:
        fetch(url, partial)
    except urllib.error.HTTPError as error:
        raise CheckpointError(f"{url} answered {error.code} ({error.reason})") from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise CheckpointError(
            f"{url} cannot be reached ({reason}); check the network, or give the path of a copy"
        ) from None


def fetch(url: str, partial: Path) -> None:
    """Download into `partial`, going on where an earlier try broke off if the file is still the same."""
    stamp = partial.with_name(partial.name + ".json")
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url)
    if have and stamp.exists():
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", json.loads(stamp.read_text())["etag"])
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        goes_on = answer.status == PARTIAL
        start = have if goes_on else 0
        etag, length = answer.headers.get("ETag"), answer.headers.get("Content-Length")
        if etag and not etag.startswith("W/"):
            stamp.write_text(json.dumps({"etag": etag}))
        total = start + int(length) if length else None
        with partial.open("ab" if goes_on else "wb") as file:
            for chunk in track(
                pieces(answer), partial.name.removesuffix(".part"), total=total, weight=CHUNK_BYTES
            ):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    size = partial.stat().st_size
    if total is not None and size != total:
        raise OSError(f"it broke off after {size:,} of {total:,} bytes; try again to go on from there")
    stamp.unlink(missing_ok=True)


def pieces(answer: Any) -> Any:
    """Yield what arrives."""
    while chunk := answer.read(CHUNK_BYTES):
        yield chunk
