"""The cache of files that Vitrine can download or compute again, and whether it may use the network. No torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from vitrine.errors import Advice, TryOption

_may_download: ContextVar[bool] = ContextVar("may_download", default=True)


def cache_folder() -> Path:
    """Return the folder of the cache: $VITRINE_CACHE, or `vitrine` in the user's cache."""
    if own := os.environ.get("VITRINE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vitrine"


@contextmanager
def downloads(*, allowed: bool) -> Iterator[None]:
    """Use only what is in the cache inside the block, unless downloads are allowed.

    For addresses from files of unknown origin, such as the record of a run, which the user did not type.
    """
    token = _may_download.set(allowed and _may_download.get())
    try:
        yield
    finally:
        _may_download.reset(token)


@contextmanager
def typed_by_user() -> Iterator[None]:
    """Allow the network inside the block again: for the address of a run that the user has started or resumed."""
    token = _may_download.set(True)
    try:
        yield
    finally:
        _may_download.reset(token)


def may_download() -> bool:
    """Whether downloads are allowed here."""
    return _may_download.get()


def is_offline() -> bool:
    """Whether nothing may be downloaded: because the user sets HF_HUB_OFFLINE, or the current block forbids it."""
    return _is_offline_by_wish() or not may_download()


def why_offline() -> tuple[str, list[Advice]]:
    """Return the reason why nothing may be downloaded, and how to change that."""
    if may_download():
        return "HF_HUB_OFFLINE forbids the network; unset it", []
    return "it is named by a run that may come from elsewhere", [
        TryOption("allow_download", "to download it", True)
    ]


def _is_offline_by_wish() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
