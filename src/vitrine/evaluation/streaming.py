"""Any number of pictures through a model, in order and in bounded memory: what embed, predict and evaluate share.

Pictures are decoded ahead of the model, and on CUDA the host never waits for the batch that the device computes: the
outputs of the one before it are copied meanwhile.

Shapes: B pictures per batch; the outputs are whatever the function returns, by name, (B, ...).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vitrine.data.loading.loader import Batch, Loader
from vitrine.data.loading.order import Rows
from vitrine.data.loading.workers import WorkerKind
from vitrine.data.preparing.training_view import View
from vitrine.data.sources.source import Source
from vitrine.runtime.launch import launched
from vitrine.runtime.threads import available_cores

# Below this, starting processes (each imports torch: a second or two) takes longer than threads take to decode.
FEWEST_FOR_PROCESSES = 1000


Some = TypeVar("Some", bound=Sized)
"""Pictures that come together: a batch, or its outputs."""


@dataclass(frozen=True, kw_only=True)
class Computed:
    """Outputs for consecutive pictures: float32 on the CPU by name, and why some have none (their rows are 0).

    `start` is the number of the first picture; `failures` and `digests` count from there.
    """

    start: int
    values: dict[str, Tensor]
    failures: Mapping[int, str]
    digests: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))


class Pace:
    """How fast pictures pass, and which fraction of the time the model waits for data.

    Both are measured from the first batch on, so that starting the workers does not count.
    """

    def __init__(self) -> None:
        self._began = self._ended = time.monotonic()
        self._waiting, self._count = 0.0, 0
        self._is_first = True

    def timed(self, batches: Iterable[Some]) -> Iterator[Some]:
        """Pass batches through, and measure how long each was waited for."""
        batches = iter(batches)
        while True:
            before = time.monotonic()
            batch = next(batches, None)
            self._ended = time.monotonic()
            if batch is None:
                return
            if self._is_first:
                self._began, self._is_first = self._ended, False
            else:
                self._waiting += self._ended - before
                self._count += len(batch)
            yield batch

    @property
    def rate(self) -> float:
        """Pictures per second; 0 for a single batch."""
        return self._count / max(self._ended - self._began, 1e-9)

    @property
    def waiting(self) -> float:
        """Fraction of the time spent waiting for data."""
        return self._waiting / max(self._ended - self._began, 1e-9)

    def __str__(self) -> str:
        return f"{self.rate:,.1f} pictures/s, waiting for data {self.waiting:.0%}"


def chosen_workers(workers: int | None, *, device: torch.device, num_pictures: int) -> tuple[int, WorkerKind]:
    """Return number and kind of the workers that decode: by default one per core of this process.

    Beside a GPU they are processes, as threads compete for Python's lock with the one that launches kernels; that one
    keeps a core for itself. A model on the CPU needs the cores itself, and threads cost less processor time per
    picture (decision 0010).
    """
    cores = max(1, available_cores() // launched().local_world_size)
    own = 0 if device.type == "cpu" else 1
    count = max(1, cores - own) if workers is None else workers
    is_large = num_pictures >= FEWEST_FOR_PROCESSES and count > 1
    return count, "processes" if device.type != "cpu" and is_large else "threads"


def rows_between(start: int, stop: int, *, batch_size: int) -> Iterator[Rows]:
    """Divide the pictures from `start` to `stop` into batches; the last one may be smaller."""
    for step, first in enumerate(range(start, stop, batch_size)):
        indices = np.arange(first, min(first + batch_size, stop), dtype=np.int64)
        yield Rows(step, indices, np.zeros_like(indices), indices)


def stream(
    loader: Loader,
    apply: Callable[[Tensor], dict[str, Tensor]],
    batches: Iterable[Rows] | None = None,
    *,
    pace: Pace | None = None,
) -> Iterator[Computed]:
    """Apply a function to batches of raw images (B, C, H, W), by default all of the loader, and yield its outputs."""
    read = loader.evaluation_batches() if batches is None else loader.batches_of(batches)
    on_the_way: deque[_Outputs] = deque()
    ahead = 0 if loader.device.type == "cpu" else 1
    for batch in read if pace is None else pace.timed(read):
        on_the_way.append(_Outputs(batch, apply(batch.images)))
        if len(on_the_way) > ahead:
            yield on_the_way.popleft().arrived()
    while on_the_way:
        yield on_the_way.popleft().arrived()


class _Outputs:
    """The outputs of one batch while they are copied from the device."""

    def __init__(self, batch: Batch, values: Mapping[str, Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._rows, self._failures, self._digests = batch.rows, batch.failures, batch.digests
        # Tensors of inference mode cannot be modified outside it: every one is copied.
        self._values = {
            name: torch.empty(value.shape, dtype=torch.float32, pin_memory=value.device.type == "cuda")
            for name, value in values.items()
        }
        for name, value in values.items():
            self._values[name].copy_(value, non_blocking=True)
        if batch.images.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def arrived(self) -> Computed:
        """Wait until the outputs are in this process's memory."""
        if self._event is not None:
            self._event.synchronize()
        for value in self._values.values():
            value[list(self._failures)] = 0
        return Computed(
            start=int(self._rows.indices[0]),
            values=self._values,
            failures=self._failures,
            digests=self._digests,
        )


def open_loader(
    source: Source,
    view: View,
    *,
    batch_size: int,
    num_workers: int,
    worker_kind: WorkerKind = "threads",
    device: torch.device | str = "cpu",
    wants_digests: bool = False,
) -> Loader:
    """Open the loader of a source whose unreadable pictures are reported and not refused."""
    return Loader(
        source,
        view,
        batch_size=batch_size,
        # For one picture a thread costs more than it gains.
        num_workers=num_workers if len(source) > 1 else 0,
        worker_kind=worker_kind,
        device=device,
        keep_going=True,
        wants_digests=wants_digests,
    )
