"""Images in memory: rows of one array, or a list of pictures that a program holds or names."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.decoding.picture_input import (
    FileObject,
    Picture,
    is_single_array,
    is_url,
    read_file_object,
    read_picture,
)
from vitrine.data.sources.source import NO_LABEL, Example, Labels, Source
from vitrine.errors import ConfigError, DataError
from vitrine.runtime.places import is_remote
from vitrine.runtime.remote_store import remote_stamp

# Bytes of downloaded pictures that a list keeps, so that each is downloaded once.
_KEPT_BYTES = 256 * 2**20


class PictureList(Source):
    """Pictures of any kind that `vitrine.data.decoding.picture_input` lists, with labels where they are known.

    Any iterable will do; file objects are read at once, everything else when it is needed.
    """

    def __init__(
        self,
        pictures: Iterable[Picture],
        *,
        labels: Labels | None = None,
        classes: Sequence[str] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        self.pictures: Sequence[Any] = as_picture_list(pictures)
        self.names = names
        count = len(self.pictures)
        self.labels = np.full(count, NO_LABEL, dtype=np.int32) if labels is None else labels
        self.classes = tuple(classes)
        self.address = f"the {count:,} pictures given"
        self._downloaded: dict[str, bytes] = {}
        self._kept_bytes = 0
        if len(self.labels) != count:
            raise ConfigError(f"{count} pictures need as many labels, got {len(self.labels)}")

    def name(self, index: int) -> str:
        """Return the name of picture `index`: as given, its path or URL, or else its number from 0."""
        if self.names is not None:
            return self.names[index]
        picture = self.pictures[index]
        return str(picture) if isinstance(picture, str | Path) else f"picture {index}"

    def path(self, index: int) -> Path | None:
        """Return the file of picture `index`, or None if it is not a file."""
        picture = self.pictures[index]
        return Path(picture) if isinstance(picture, str | Path) and not is_remote(picture) else None

    def read(self, index: int) -> Example:
        """Read picture `index`."""
        return Example(data=self._data(index), label=self.label(index), name=self.name(index))

    def size(self, index: int) -> int:
        """Bytes of picture `index`, 0 if it cannot be read."""
        path, picture = self.path(index), self.pictures[index]
        try:
            if isinstance(picture, str) and is_remote(picture) and not is_url(picture):
                return remote_stamp(picture)[0]
            return path.stat().st_size if path is not None else len(_as_bytes(self._data(index)))
        except (OSError, DataError):
            return 0

    def _data(self, index: int) -> bytes | Pixels:
        picture = self.pictures[index]
        if is_url(picture) and picture in self._downloaded:
            return self._downloaded[picture]
        data = read_picture(picture, name=self.name(index))
        if is_url(picture) and self._kept_bytes + len(data) <= _KEPT_BYTES:
            assert isinstance(data, bytes)
            self._downloaded[picture] = data
            self._kept_bytes += len(data)
        return data


def as_picture_list(pictures: Any) -> Sequence[Any]:
    """Return a list, stack, array, generator or table column of pictures as a sequence; refuse a single picture."""
    pictures = _column_of(pictures)
    is_single = isinstance(pictures, str | Path | bytes | bytearray | memoryview | Image.Image | FileObject)
    if isinstance(pictures, torch.Tensor) or (
        isinstance(pictures, np.ndarray) and pictures.dtype.kind not in "OUS"
    ):
        if not is_single_array(pictures):
            return pictures  # type: ignore[return-value] # (N, H, W), (N, H, W, C) or (N, C, H, W)
        is_single = True
    if is_single:
        raise ConfigError(
            f"a list of pictures is needed, got a single {type(pictures).__name__}; write [picture]"
        )
    sequence: Any = pictures if isinstance(pictures, Sequence | np.ndarray) else list(pictures)
    if not any(isinstance(picture, FileObject) for picture in sequence):
        return sequence
    return [
        read_file_object(picture, name=f"picture {number}") if isinstance(picture, FileObject) else picture
        for number, picture in enumerate(sequence)
    ]


def _column_of(pictures: Any) -> Any:
    """Return the one column of a table (pandas, polars, or an array of shape (N, 1)); anything else as it is."""
    columns = getattr(pictures, "columns", None)
    if columns is not None:
        if len(columns) != 1:
            raise DataError(
                f"one column of pictures is needed, got {', '.join(map(str, columns))}; select one of them"
            )
        return pictures[columns[0]]
    is_column = (
        isinstance(pictures, np.ndarray) and pictures.dtype.kind in "OUS" and pictures.shape[1:] == (1,)
    )
    return pictures[:, 0] if is_column else pictures


def _as_bytes(data: bytes | Pixels) -> bytes:
    return data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()


class ArraySource(Source):
    """Images (N, H, W, C) uint8 with labels; they may be mapped from a file."""

    def __init__(
        self,
        images: Pixels,
        *,
        labels: Labels,
        classes: Sequence[str],
        address: str,
        root: Path | None,
        prefix: str = "",
    ) -> None:
        assert len(images) == len(labels)
        self.images, self.labels, self.classes = images, labels, tuple(classes)
        self.address, self.root, self.prefix = address, root, prefix

    def name(self, index: int) -> str:
        """Name row `index` by its split and number."""
        return f"{self.prefix}{index:06d}"

    def read(self, index: int) -> Example:
        """Return the pixels of row `index`: (H, W, C)."""
        return Example(data=self.images[index], label=self.label(index), name=self.name(index))

    def size(self, index: int) -> int:
        """Bytes of one row: the same for all."""
        return int(self.images[0].nbytes)
