"""Where Vitrine keeps what can be brought or made anew, and whether it may ask the network for it. No torch."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return where what can be made anew is kept: $VITRINE_CACHE, or `vitrine` in the user's cache."""
    if own := os.environ.get("VITRINE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vitrine"


def is_offline() -> bool:
    """Whether the user forbids the network, in the words that huggingface-hub understands."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
