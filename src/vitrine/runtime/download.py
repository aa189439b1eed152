"""Download a file: bounded in size, time and redirects, resumed where it stopped, checked, one process at a time.

The only code in Vitrine that opens a URL. A file takes its name only once it is complete; until then it is NAME.part,
with the server's ETag beside it in NAME.part.json. No torch.
"""

import hashlib
import ipaddress
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vitrine.errors import DownloadError
from vitrine.runtime.cache import cache_folder, is_offline, why_offline
from vitrine.runtime.files import sha256_of
from vitrine.runtime.locks import wait_for_lock
from vitrine.runtime.progress import track

CHUNK_BYTES = 1 << 20
ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.2
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416
# Too many requests, bad gateway, unavailable, gateway timeout: worth another attempt.
TEMPORARY = (429, 502, 503, 504)
SCHEMES = ("http", "https")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one download."""

    max_bytes: int | None = None
    """Most bytes, by the declared length and by what arrives; None for no limit."""
    max_seconds: float | None = None
    """Most seconds for the whole download; None for no limit."""
    silence_seconds: float = 30.0
    """Most seconds without a byte from the server."""
    max_redirects: int = 5
    may_redirect_to_private: bool = False
    """Whether a public address may redirect to one of this machine or its local network."""


NO_LIMITS = Limits()


def download(
    url: str,
    path: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    headers: Mapping[str, str] | None = None,
    limits: Limits = NO_LIMITS,
) -> Path:
    """Download `url` to `path` unless it is there; resume an earlier attempt; refuse another size or SHA-256."""
    if _is_complete(path, size):
        return path
    _require_network(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    # Two processes that resume one file would overwrite each other's bytes.
    with wait_for_lock(part):
        if _is_complete(path, size):  # another process has downloaded it
            return path
        for _ in range(2):
            _download_rest(
                url, part, size=size, has_checksum=sha256 is not None, headers=headers or {}, limits=limits
            )
            if sha256 is None or sha256_of(part) == sha256:
                _stamp(part).unlink(missing_ok=True)
                return part.replace(path)
            _discard(part)  # the earlier part may be of another version: start again
    raise DownloadError(f"{url} has another SHA-256 than expected ({sha256}), twice; try again later")


def download_to_cache(url: str, *, limits: Limits = NO_LIMITS) -> Path:
    """Download `url` into Vitrine's cache, under a unique name, and return the file."""
    name = Path(urlsplit(url).path).name or "download"
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    return download(url, cache_folder() / f"{key}-{name}", limits=limits)


def read_url(url: str, *, limits: Limits) -> bytes:
    """Return the bytes of a URL; nothing is written."""
    _require_network(url)
    deadline = _Deadline(limits)
    with _reporting(url), _open(url, {}, limits) as answer:
        _require_length(url, answer, have=0, limits=limits)
        return b"".join(_pieces(url, answer, have=0, limits=limits, deadline=deadline))


class _Deadline:
    """The deadline of a download."""

    def __init__(self, limits: Limits) -> None:
        self.seconds = limits.max_seconds
        self.start = time.monotonic()

    def require(self, url: str) -> None:
        """Raise an error after the deadline."""
        if self.seconds is not None and time.monotonic() - self.start > self.seconds:
            raise DownloadError(f"{url} did not arrive within {self.seconds:g} s")


def _is_complete(path: Path, size: int | None) -> bool:
    return path.is_file() and (size is None or path.stat().st_size == size)


def _require_network(url: str) -> None:
    if urlsplit(url).scheme not in SCHEMES:
        raise DownloadError(f"cannot download {url}: only http and https addresses are downloaded")
    if is_offline():
        reason, advice = why_offline()
        raise DownloadError(f"{url} is not in the cache and {reason}", advice=advice)


def _download_rest(
    url: str, part: Path, *, size: int | None, has_checksum: bool, headers: Mapping[str, str], limits: Limits
) -> None:
    """Complete `part`, in several attempts if the connection breaks."""
    deadline = _Deadline(limits)
    for attempt in range(ATTEMPTS):
        if size is not None and part.is_file() and part.stat().st_size > size:
            _discard(part)
        if size is not None and part.is_file() and part.stat().st_size == size:
            return
        try:
            _attempt(
                url,
                part,
                is_checked=has_checksum or size is not None,
                headers=headers,
                limits=limits,
                deadline=deadline,
            )
            if size is None or part.stat().st_size == size:
                return
            raise OSError(f"it ends after {part.stat().st_size:,} of {size:,} bytes")
        except urllib.error.HTTPError as error:
            if error.code == RANGE_NOT_SATISFIABLE and part.is_file():
                _discard(part)
            elif error.code not in TEMPORARY or attempt == ATTEMPTS - 1:
                raise DownloadError(
                    f"cannot download {url}: the server answered {error.code} ({error.reason})"
                ) from None
        except DownloadError:
            raise
        except OSError as error:
            if attempt == ATTEMPTS - 1:
                raise DownloadError(
                    f"cannot download {url}: {_first_line(error)}; try again to resume"
                ) from None
        time.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
    raise DownloadError(f"cannot download {url}: it ends before its {size:,} bytes; try again to resume")


def _attempt(
    url: str, part: Path, *, is_checked: bool, headers: Mapping[str, str], limits: Limits, deadline: _Deadline
) -> None:
    have = part.stat().st_size if part.is_file() else 0
    etag = _known_etag(part)
    # Without an ETag or a checksum, a change of the file in between would go unnoticed: start again.
    resumes = bool(have) and (etag is not None or is_checked)
    asked = dict(headers)
    if resumes:
        asked["Range"] = f"bytes={have}-"
        if etag is not None:
            asked["If-Range"] = etag
    with _open(url, asked, limits) as answer:
        is_rest = answer.status == PARTIAL_CONTENT
        have = have if is_rest else 0
        total = _require_length(url, answer, have=have, limits=limits)
        _note_etag(part, answer.headers.get("ETag"))
        with part.open("ab" if is_rest else "wb") as file:
            pieces = _pieces(url, answer, have=have, limits=limits, deadline=deadline)
            for piece in track(pieces, part.name.removesuffix(".part"), total=total, weight=CHUNK_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and part.stat().st_size != total:
        raise OSError(f"the connection ended after {part.stat().st_size:,} of {total:,} bytes")


def _open(url: str, headers: Mapping[str, str], limits: Limits) -> Any:
    opener = urllib.request.build_opener(_Redirects(limits))
    return opener.open(urllib.request.Request(url, headers=dict(headers)), timeout=limits.silence_seconds)


def _require_length(url: str, answer: Any, *, have: int, limits: Limits) -> int | None:
    """Return the whole length that the server declares; refuse one above the limit before anything is read."""
    declared = answer.headers.get("Content-Length")
    if declared is None or not declared.isdecimal():
        return None
    total = have + int(declared)
    if limits.max_bytes is not None and total > limits.max_bytes:
        raise DownloadError(f"{url} has {total:,} bytes; at most {limits.max_bytes:,} are downloaded")
    return total


def _pieces(url: str, answer: Any, *, have: int, limits: Limits, deadline: _Deadline) -> Iterator[bytes]:
    while piece := answer.read(CHUNK_BYTES):
        have += len(piece)
        if limits.max_bytes is not None and have > limits.max_bytes:
            raise DownloadError(f"{url} has more than {limits.max_bytes:,} bytes")
        deadline.require(url)
        yield piece


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, never from https to http or from a public to a private address.

    The user's token is never sent to another host.
    """

    def __init__(self, limits: Limits) -> None:
        self.most, self.may_be_private = limits.max_redirects, limits.may_redirect_to_private

    def redirect_request(  # noqa: PLR0917 (the parameters are its parent's)
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """Return the request to the new address."""
        if len(getattr(req, "redirect_dict", {})) >= self.most:
            raise DownloadError(f"{newurl} is more than {self.most} redirects away")
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in SCHEMES or (before.scheme == "https" and after.scheme != "https"):
            raise DownloadError(f"{req.full_url} redirects to {after.scheme}, which is not followed")
        if not self.may_be_private and is_private(after.hostname) and not is_private(before.hostname):
            raise DownloadError(
                f"{req.full_url} redirects to {after.hostname}, a private address, which is not followed"
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and before.netloc != after.netloc:
            request.remove_header("Authorization")
        return request


def is_private(host: str | None) -> bool:
    """Whether a host name resolves to this machine or its local network; False for unknown names."""
    try:
        entries = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return any(not ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_global for entry in entries)


@contextmanager
def _reporting(url: str) -> Iterator[None]:
    """Turn any error of a connection into one sentence."""
    try:
        yield
    except DownloadError:
        raise
    except urllib.error.HTTPError as error:
        raise DownloadError(
            f"cannot download {url}: the server answered {error.code} ({error.reason})"
        ) from None
    except OSError as error:
        raise DownloadError(f"cannot download {url}: {_first_line(error)}") from None


def _stamp(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _known_etag(part: Path) -> str | None:
    try:
        etag = json.loads(_stamp(part).read_text())["etag"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return etag if isinstance(etag, str) else None


def _note_etag(part: Path, etag: str | None) -> None:
    if etag and not etag.startswith("W/"):  # a weak one does not promise the same bytes
        _stamp(part).write_text(json.dumps({"etag": etag}))
    else:
        _stamp(part).unlink(missing_ok=True)


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _stamp(part).unlink(missing_ok=True)


def _first_line(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return (str(reason).strip() or type(error).__name__).splitlines()[0].rstrip(".")
