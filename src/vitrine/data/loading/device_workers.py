"""Threads that fill rows of a batch on the CUDA device itself, while the workers fill the others.

A few threads suffice: reading files, decoding JPEGs and cropping release Python's lock, which the thread that
launches the training step needs. Two of them render, each on its own stream, so that one batch is read and cropped
while the engines decode another.
"""

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.loading.nvjpeg import Rendered, can_render, render_rows, require_nvjpeg
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.preparing.training_view import Numbers, TrainView
from vitrine.data.sources.source import Example, Source
from vitrine.errors import ConfigError, VitrineError

_READERS, _RENDERERS = 4, 2
# Files per task of a reader.
_CHUNK = 16
# A lower number means a higher priority: a crop is small, the batch that waits for it is not.
_PRIORITY = -1


def rows_on_device(positions: NDArray[np.int64], *, share: float) -> NDArray[np.bool_]:
    """Return which rows the device decodes: evenly spread, by position alone, whatever the batch or process."""
    return np.floor((positions + 1) * share) > np.floor(positions * share)


class DeviceWorkers:
    """Reads files in threads and renders them on the device."""

    def __init__(self, source: Source, view: AnyView, *, device: torch.device) -> None:
        if not isinstance(view, TrainView) or not can_render(view):
            raise ConfigError(
                "device_share needs training views with the inception crop of colour images, bilinear; "
                f"with 0 the workers decode everything, got {view}"
            )
        require_nvjpeg(device)
        # With its index: new threads do not inherit the current device.
        self._device = torch.empty(0, device=device).device
        self._source, self._view = source, view
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="vitrine-read")
        self._own = threading.local()
        self._renderers = ThreadPoolExecutor(
            _RENDERERS, thread_name_prefix="vitrine-render", initializer=self._begin
        )

    def start(self, indices: NDArray[np.int64], numbers: Numbers) -> Future[Rendered]:
        """Start filling one row per index."""
        return self._renderers.submit(self._render, indices, numbers)

    def close(self) -> None:
        """Stop the threads after their current tasks."""
        self._renderers.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True, cancel_futures=True)

    def _read(self, indices: NDArray[np.int64]) -> list[Example | VitrineError]:
        examples: list[Example | VitrineError] = []
        for index in indices:
            try:
                examples.append(self._source.read(int(index)))
            except VitrineError as error:
                examples.append(error)
        return examples

    def _render(self, indices: NDArray[np.int64], numbers: Numbers) -> Rendered:
        # Read here and not ahead, so that at most two batches of files are in memory.
        chunks = [indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK)]
        examples = [example for chunk in self._readers.map(self._read, chunks) for example in chunk]
        with self._own.stream:
            rendered = render_rows(examples, numbers=numbers, view=self._view, device=self._device)
            if self._device.type == "cuda":  # so that the result can be used on any stream
                torch.cuda.current_stream(self._device).synchronize()
        return rendered

    def _begin(self) -> None:
        """Create a stream for this thread."""
        self._own.stream = contextlib.nullcontext()
        if self._device.type == "cuda":
            self._own.stream = torch.cuda.stream(torch.cuda.Stream(self._device, priority=_PRIORITY))  # type: ignore[no-untyped-call]
