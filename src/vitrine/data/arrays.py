"""Images that are rows of one array: CIFAR's binaries and IDX files."""

from collections.abc import Sequence
from pathlib import Path

from vitrine.data.source import Example, Labels, Pixels, Source


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
