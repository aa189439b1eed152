"""Write files so that a crash leaves the old one or the new one, never half of one."""

import os
import tempfile
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
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.")
    try:
        with os.fdopen(handle, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner may read; ours are like any other.
        os.chmod(temporary, 0o666 & ~_umask())  # noqa: PTH101
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def size_in_words(num_bytes: float) -> str:
    """Write what a file takes, or a disk has free, for people: 5.6 MB, 1.3 GB."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
