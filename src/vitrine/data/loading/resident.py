"""Small sets in the memory of the device: workers cannot feed a GPU that trains on 80,000 tiny images per second.

The images equal those of `Loader` with the same seed, pixel for pixel.
"""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import torch
from torch.nn import functional as F

from vitrine.data.loading.loader import Batch
from vitrine.data.loading.order import Rows, check_batch, training_rows, view_numbers
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.sources.in_memory import ArraySource
from vitrine.data.sources.source import Source, Subset
from vitrine.runtime.threads import in_order

# Larger sets are read by workers.
LARGEST_BYTES = 4 << 30
_NUM_UNIFORMS = 3  # flip, top, left: the first numbers of `TrainView`


def can_reside(source: Source, view: TrainView) -> bool:
    """Whether a set is small and in memory, with images of the view's size, and the view only shifts and flips."""
    array = pixels_of(source)
    return (
        array is not None
        and not source.is_multi_label
        and view.crop in ("padded", "none")
        and array.shape[1:] == (*view.size, view.channels)
        and len(source) * array[0].size <= LARGEST_BYTES
    )


def pixels_of(source: Source) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None:
    """Return the array (N, H, W, C) of a set that is stored as one, or of the set that it is a subset of."""
    whole = source.source if isinstance(source, Subset) else source
    return whole.images if isinstance(whole, ArraySource) else None


class ResidentLoader:
    """Creates training batches on the device; a thread draws the random numbers ahead."""

    def __init__(
        self,
        source: Source,
        view: TrainView,
        *,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        repeats: int = 1,
        alternates_flip: bool = False,
    ) -> None:
        check_batch(batch_size, rank=rank, world_size=world_size)
        assert can_reside(source, view)
        self.source, self.view, self.device = source, view, torch.device(device)
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        self.repeats, self.alternates_flip = repeats, alternates_flip
        array = pixels_of(source)
        assert array is not None
        chosen = array[np.asarray(source.indices)] if isinstance(source, Subset) else array
        images = torch.from_numpy(np.ascontiguousarray(chosen)).permute(0, 3, 1, 2).to(self.device)
        self.pad = [max(1, side // 8) if view.crop == "padded" else 0 for side in view.size]
        self.images = F.pad(images, (self.pad[1], self.pad[1], self.pad[0], self.pad[0])).contiguous()
        self.labels = torch.from_numpy(source.labels.astype(np.int64)).to(self.device)

    def training_batches(self, *, start_step: int = 0, stop_step: int) -> Iterator[Batch]:
        """Yield the batches of steps `start_step` up to `stop_step`."""
        drawn = in_order(self._draw, range(start_step, stop_step), num_workers=1)
        with closing(drawn):
            for rows, choices in drawn:
                yield self._make(rows, choices)

    def close(self) -> None:
        """Free the memory of the device."""
        self.images = self.labels = torch.empty(0)

    def _draw(self, step: int) -> tuple[Rows, torch.Tensor]:
        rows = training_rows(
            step,
            length=len(self.source),
            batch_size=self.batch_size,
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
            repeats=self.repeats,
        )
        numbers = view_numbers(
            rows, seed=self.seed, count=_NUM_UNIFORMS, alternates_flip=self.alternates_flip
        )
        flip = (numbers[:, 0] < 0.5) & self.view.flip
        corner = (numbers[:, 1:] * (2 * np.array(self.pad) + 1)).astype(np.int64)
        choices = torch.from_numpy(np.stack([rows.indices, flip.astype(np.int64), *corner.T]))  # (4, B)
        return rows, choices.pin_memory() if self.device.type == "cuda" else choices

    def _make(self, rows: Rows, choices: torch.Tensor) -> Batch:
        index, flip, top, left = choices.to(self.device, non_blocking=True)
        height, width = self.view.size
        down = top[:, None] + torch.arange(height, device=self.device)  # (B, H)
        across = torch.arange(width, device=self.device)
        across = left[:, None] + torch.where(flip[:, None] > 0, width - 1 - across, across)  # (B, W)
        channels = torch.arange(self.view.channels, device=self.device)
        images = self.images[
            index[:, None, None, None],
            channels[:, None, None],
            down[:, None, :, None],
            across[:, None, None, :],
        ]
        return Batch(images=images, labels=self.labels[index], rows=rows, failures={})
