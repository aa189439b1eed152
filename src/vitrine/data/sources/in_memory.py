"""Images in memory: rows of one array, or a list of pictures that a program holds or names."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from vitrine.data.decoding.decode import pixels_of
from vitrine.data.decoding.pixels import Pixels
from vitrine.data.sources.file_list import read_file
from vitrine.data.sources.source import NO_LABEL, Example, Labels, Source
from vitrine.errors import ConfigError, DataError

Picture: TypeAlias = str | Path | bytes | Image.Image | Pixels
"""A path, an encoded file, an opened picture, or uint8 pixels of shape (H, W), (H, W, 1) or (H, W, 3)."""

# Pillow loads a picture when it is first used, and the same one may stand in a list twice.
_LOADING = threading.Lock()


class PictureList(Source):
    """A list of pictures of any of these kinds, with labels where they are known."""

    def __init__(
        self,
        pictures: Sequence[Picture],
        *,
        labels: Labels | None = None,
        classes: Sequence[str] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        require_list(pictures)
        self.pictures = pictures
        self.names = names
        self.labels = np.full(len(pictures), NO_LABEL, dtype=np.int32) if labels is None else labels
        self.classes = tuple(classes)
        self.address = f"the {len(pictures):,} pictures given"
        if len(self.labels) != len(pictures):
            raise ConfigError(f"{len(pictures)} pictures need as many labels, got {len(self.labels)}")

    def name(self, index: int) -> str:
        """Return the name of picture `index`: as given, its path, or else its number from 0."""
        if self.names is not None:
            return self.names[index]
        picture = self.pictures[index]
        return str(picture) if isinstance(picture, str | Path) else f"picture {index}"

    def path(self, index: int) -> Path | None:
        """Return the file that is picture `index`, where it is one."""
        picture = self.pictures[index]
        return Path(picture) if isinstance(picture, str | Path) else None

    def read(self, index: int) -> Example:
        """Read picture `index` as it is."""
        return Example(data=self._data(index), label=self.label(index), name=self.name(index))

    def size(self, index: int) -> int:
        """Bytes of picture `index`, 0 where it cannot be read."""
        path = self.path(index)
        try:
            return path.stat().st_size if path is not None else len(_as_bytes(self._data(index)))
        except (OSError, DataError):
            return 0

    def _data(self, index: int) -> bytes | Pixels:
        picture: object = self.pictures[index]
        if isinstance(picture, str | Path):
            return read_file(str(picture))
        if isinstance(picture, Image.Image):
            with _LOADING:
                return pixels_of(picture, name=self.name(index))
        if isinstance(picture, bytes | np.ndarray):
            return picture
        if isinstance(picture, bytearray | memoryview):
            return bytes(picture)
        raise DataError(
            f"{self.name(index)} is a {type(picture).__name__}; a path, bytes, a Pillow image or an array (H, W, C) "
            "is needed"
        )


def require_list(pictures: object) -> None:
    """Refuse one picture in the place of a list of them, which would be taken apart into rows or letters."""
    is_one = isinstance(pictures, str | Path | bytes | Image.Image)
    if isinstance(pictures, np.ndarray) and pictures.dtype.kind not in "OUS":
        # (N, H, W) is a list of grey pictures; nobody's are 3 pixels wide.
        is_one = pictures.ndim < 3 or (pictures.ndim == 3 and pictures.shape[2] in (1, 3, 4))
    if is_one:
        raise ConfigError(
            f"a list of pictures is needed, got a single {type(pictures).__name__}; write [picture]"
        )


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
