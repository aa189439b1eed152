"""The work on one picture between the end of its upload and its result, off the event loop.

Decoding runs in a few threads, the model in others that batch; the event loop only waits. Nothing of an upload is
kept: bytes and pixels are released with the response.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor

from vitrine.errors import DataError
from vitrine.runtime.threads import available_cores
from vitrine.serving.admission import UNAVAILABLE, Limits, RefusedError, refusal_of
from vitrine.serving.answer_cache import AnswerCache, Key
from vitrine.serving.batching import Batcher, Task, current_trace
from vitrine.serving.served_model import ServedModel
from vitrine.serving.uploads import check_picture, is_jpeg, num_pixels

MOST_DECODERS = 4
# A picture may take 20 bytes per pixel while it is decoded; larger ones than this are decoded one at a time.
LARGE_PIXELS = 8_000_000


def as_it_is(pixels: Tensor) -> Any:
    """Return the pixels unchanged: the input of most tasks."""
    return pixels


class Pipeline:
    """Threads that decode, threads that compute batches, and the wait for a result."""

    def __init__(
        self,
        limits: Limits,
        *,
        workers: int,
        on_batch: Callable[[Task, int, float], None],
        cache: AnswerCache | None = None,
    ) -> None:
        self.limits, self.cache = limits, cache
        self.batcher = Batcher(workers=workers, target_seconds=limits.target_seconds, on_batch=on_batch)
        self.decoders = ThreadPoolExecutor(min(MOST_DECODERS, available_cores()), thread_name_prefix="decode")
        self.large_decoder = ThreadPoolExecutor(1, thread_name_prefix="decode large")

    def stop(self) -> None:
        """Finish the queue and end all threads."""
        self.batcher.stop()
        self.decoders.shutdown()
        self.large_decoder.shutdown()

    async def in_thread(self, function: Any, *values: Any) -> Any:
        """Run a function beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.decoders, function, *values)

    async def computed_tensor(self, pixels: Tensor, task: Task) -> Any:
        """Compute the model's input of one picture, made by the client."""
        return await self._within_time(self.batcher.submit(task, pixels, trace=current_trace.get()))

    async def computed(
        self,
        served: ServedModel,
        data: bytes,
        task: Task,
        *,
        item: Callable[[Tensor], Any] = as_it_is,
        prepare: Callable[..., Any] | None = None,
    ) -> Any:
        """Decode and compute an upload in threads; cancelling this cancels the work that has not begun.

        `prepare` decodes to the input of the task if that is not the model's usual input. The answer comes from the
        cache if the same bytes had the same task before, unless `item` or `prepare` is given.
        """
        result: Future[Any] = Future()
        cache = self.cache if item is as_it_is and prepare is None else None
        trace = current_trace.get()
        max_pixels = self.limits.pixels if is_jpeg(data) else self.limits.whole_pixels

        def decode() -> None:
            begin = time.time_ns()
            made = (served.pixels if prepare is None else prepare)(data, max_pixels=max_pixels)
            if trace is not None:
                trace.record("decode", begin, time.time_ns(), {"vitrine.bytes": len(data)})
            self.batcher.submit(task, item(made), future=result, trace=trace)

        def answer() -> None:
            if cache is None:
                decode_if_small()
                return
            key = cache.key(served.version, task.name, data)
            known = cache.get(key)
            if known is None:
                result.add_done_callback(partial(keep, key))
                decode_if_small()
            elif result.set_running_or_notify_cancel():
                result.set_result(known)

        def keep(key: Key, computed: Future[Any]) -> None:
            if cache is not None and not computed.cancelled() and computed.exception() is None:
                cache.put(key, computed.result())

        def decode_if_small() -> None:
            check_picture(data, max_pixels=max_pixels)
            if num_pixels(data) > LARGE_PIXELS:
                self.large_decoder.submit(attempt, decode)
            else:
                decode()

        def attempt(work: Callable[[], None]) -> None:
            if result.cancelled():
                return
            try:
                work()
            except Exception as error:  # the client waits for the result
                with suppress(InvalidStateError):  # unless it has gone away meanwhile
                    result.set_exception(refusal_of(error) if isinstance(error, DataError) else error)

        self.decoders.submit(attempt, answer)
        return await self._within_time(result)

    async def _within_time(self, result: Future[Any]) -> Any:
        """Wait for a result; cancelling this cancels it."""
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await asyncio.wrap_future(result)
        except TimeoutError:
            raise RefusedError(
                UNAVAILABLE,
                f"no result within {self.limits.answer_seconds:g} seconds; try again later",
                retry_after=self.batcher.expected_wait(),
            ) from None
