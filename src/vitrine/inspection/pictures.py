"""The analysed images, in batches that can be iterated again."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.decoding.image_file import read_facts
from vitrine.data.loading.loader import Loader
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import DataError


class PictureBatches:
    """A source's images, normalised, in batches; unreadable ones are skipped and listed in `failures`."""

    def __init__(
        self,
        source: Source,
        *,
        preprocess: Preprocess,
        batch_size: int,
        num_workers: int = 2,
        device: torch.device | str = "cpu",
    ) -> None:
        self.source, self.preprocess, self.device = source, preprocess, torch.device(device)
        self.batch_size, self.num_workers = batch_size, num_workers
        self.failures: dict[int, str] = {}

    def __len__(self) -> int:
        return math.ceil(len(self.source) / self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield batches (B, C, height, width) of the readable images."""
        for pixels in self.pixels():
            yield self.preprocess.normalise(pixels)

    def pixels(self) -> Iterator[Tensor]:
        """Yield the same batches as uint8."""
        with Loader(
            self.source,
            self.preprocess,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            device=self.device,
            keep_going=True,
        ) as loader:
            for batch in loader.evaluation_batches():
                self.failures |= {int(batch.rows.indices[row]): why for row, why in batch.failures.items()}
                good = [row for row in range(len(batch)) if row not in batch.failures]
                if good:
                    yield batch.images[good]

    def part(self, indices: Sequence[int]) -> "PictureBatches":
        """Return the same for some of the images."""
        return PictureBatches(
            Subset(self.source, indices),
            preprocess=self.preprocess,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            device=self.device,
        )


def spread(length: int, count: int) -> NDArray[np.int64]:
    """Choose `count` numbers below `length`, spread evenly, or all of them."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(np.int64))


def as_shown(pixels: Tensor) -> NDArray[np.uint8]:
    """Turn pixels (B, C, height, width) into pictures (B, height, width, 3); of more channels the first three."""
    shown = pixels.cpu().numpy().transpose(0, 2, 3, 1)[..., :3]
    missing = 3 - shown.shape[-1]
    return np.concatenate([shown, np.repeat(shown[..., -1:], missing, axis=-1)], axis=-1)


def smaller_than_a_patch(source: Source, patch: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """Return height and width of the images that are smaller than one patch, from their headers."""
    sizes = {}
    for index in range(len(source)):
        try:
            facts = read_facts(source.read(index).data, name=source.name(index))
        except DataError:  # reported where it is decoded
            continue
        if facts.height < patch[0] or facts.width < patch[1]:
            sizes[index] = (facts.height, facts.width)
    return sizes
