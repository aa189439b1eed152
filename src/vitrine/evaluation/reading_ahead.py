"""Pictures of any size, read and resized in threads, in order, a few ahead of the one that is taken."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source
from vitrine.errors import VitrineError
from vitrine.evaluation.outputs import Precision, casting

Prediction = TypeVar("Prediction")

AHEAD_PER_WORKER = 4


@dataclass(frozen=True, kw_only=True)
class ReadPicture:
    """A resized picture (C, h, w) uint8 with the height and width of its file, or why it cannot be read."""

    index: int
    resized: Tensor | None = None
    size: tuple[int, int] = (0, 0)
    error: str | None = None


def read_ahead(
    source: Source,
    indices: Sequence[int],
    *,
    preprocess: Preprocess,
    num_workers: int,
    resize: Callable[[Pixels, Preprocess], Tensor],
) -> Iterator[ReadPicture]:
    """Read and resize pictures in order."""

    def read(index: int) -> ReadPicture:
        try:
            example = source.read(index)
            pixels = decode(example.data, name=example.name, channels=preprocess.channels)
        except VitrineError as error:
            return ReadPicture(index=index, error=str(error))
        return ReadPicture(
            index=index, resized=resize(pixels, preprocess), size=(pixels.shape[0], pixels.shape[1])
        )

    count = max(num_workers, 1)
    waiting: deque[Future[ReadPicture]] = deque()
    with ThreadPoolExecutor(count, initializer=lambda: torch.set_num_threads(1)) as pool:
        todo = iter(indices)
        for index in todo:
            waiting.append(pool.submit(read, index))
            if len(waiting) >= AHEAD_PER_WORKER * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def in_groups(
    reads: Iterable[ReadPicture],
    predicted: Callable[[list[ReadPicture]], list[Prediction]],
    *,
    num_pictures: int,
    device: torch.device,
    precision: Precision,
) -> Iterator[Prediction]:
    """Predict some pictures at once, in order, without gradients."""
    group: list[ReadPicture] = []

    def of_group() -> list[Prediction]:
        # Not inference mode: tensors that a module caches in it could not be trained with afterwards.
        with torch.no_grad(), casting(device, precision):
            return predicted(group)

    for read in reads:
        group.append(read)
        if len(group) >= num_pictures:
            yield from of_group()
            group.clear()
    yield from of_group()
