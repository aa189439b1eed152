"""Threads that fill rows of a batch on the CUDA device itself, beside the workers that fill the others.

Few threads reach far here: files are read, JPEGs decoded and crops made without Python's lock, which the thread that
launches the training step needs. Two of them render, each by a stream of its own, so that one batch is read and cut
while the engines decode another.
"""

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.loading.nvjpeg import Rendered, can_render, render_rows, require_nvjpeg
from vitrine.data.preparing.training_view import Numbers, TrainView, View
from vitrine.data.sources.source import Example, Source
from vitrine.errors import ConfigError, VitrineError

_READERS, _RENDERERS = 4, 2
# Files that a reader takes at a time.
_CHUNK = 16
# Streams with a lower number go first: a crop is small, and a batch that waits for it is not.
_PRIORITY = -1


def rows_on_device(positions: NDArray[np.int64], *, share: float) -> NDArray[np.bool_]:
    """Say which rows the device decodes: an even share, by position alone, whatever batch or process they are in."""
    return np.floor((positions + 1) * share) > np.floor(positions * share)


class DeviceWorkers:
    """Reads files in threads and renders them on the device; there is nothing to send."""

    def __init__(self, source: Source, view: View, *, device: torch.device) -> None:
        if not isinstance(view, TrainView) or not can_render(view):
            raise ConfigError(
                "device_share is for training views with the inception crop of colour images, bilinear; "
                f"0 leaves all to the workers, got {view}"
            )
        require_nvjpeg(device)
        # By its number, as new threads know nothing of this one's current device.
        self._device = torch.empty(0, device=device).device
        self._source, self._view = source, view
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="vitrine-read")
        self._own = threading.local()
        self._renderers = ThreadPoolExecutor(
            _RENDERERS, thread_name_prefix="vitrine-render", initializer=self._begin
        )

    def start(self, indices: NDArray[np.int64], numbers: Numbers) -> Future[Rendered]:
        """Begin to fill one row for each index."""
        return self._renderers.submit(self._render, indices, numbers)

    def close(self) -> None:
        """Stop the threads once what they are doing is done."""
        self._renderers.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True, cancel_futures=True)

    def _read(self, indices: NDArray[np.int64]) -> list[Example | VitrineError]:
        found: list[Example | VitrineError] = []
        for index in indices:
            try:
                found.append(self._source.read(int(index)))
            except VitrineError as error:
                found.append(error)
        return found

    def _render(self, indices: NDArray[np.int64], numbers: Numbers) -> Rendered:
        # Read here and not ahead, so that never more than two batches of files are in memory.
        chunks = [indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK)]
        examples = [example for chunk in self._readers.map(self._read, chunks) for example in chunk]
        with self._own.stream:
            rendered = render_rows(examples, numbers=numbers, view=self._view, device=self._device)
            if self._device.type == "cuda":  # so that whoever has the result may use it on any stream
                torch.cuda.current_stream(self._device).synchronize()
        return rendered

    def _begin(self) -> None:
        """Give this thread a stream of its own."""
        self._own.stream = contextlib.nullcontext()
        if self._device.type == "cuda":
            self._own.stream = torch.cuda.stream(torch.cuda.Stream(self._device, priority=_PRIORITY))  # type: ignore[no-untyped-call]
