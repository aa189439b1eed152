"""Write files so that a crash leaves the old one or the new one, never half of one."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def write_atomically(path: Path, *, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path` that takes its place when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text: dict[str, Any] = (
        {} if "b" in mode else {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    )
    # Made as any other file is, so that the system gives it the mode bits that the user's mask leaves.
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}")
    try:
        with temporary.open(mode.replace("w", "x"), **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def json_text(values: Any, *, indent: int | None = None) -> str:
    """Write values as JSON that every reader takes; names whose bytes are no UTF-8 come back as they were."""
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a folder's name out of an old archive: escaped, all of the text is ASCII
        return json.dumps(values, indent=indent)
    return text


def sha256_of(path: Path) -> str:
    """Read a file in pieces and return its SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_in_words(num_bytes: float) -> str:
    """Write what a file takes, or a disk has free, for people: 5.6 MB, 1.3 GB."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
