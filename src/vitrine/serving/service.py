"""What happens to one picture between the end of its upload and its result, off the event loop.

Decoding runs in a few threads, the model in others that batch; the event loop only waits. Nothing of an upload is
kept: bytes and pixels are released with the response.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from vitrine.errors import ConfigError, DataError, VitrineError
from vitrine.runtime.threads import available_cores
from vitrine.serving.admission import UNAVAILABLE, UNREADABLE, Admission, Limits, RefusedError, refusal_of
from vitrine.serving.batching import Batcher, Task
from vitrine.serving.explanation import chosen_layers
from vitrine.serving.live_run import LiveRun
from vitrine.serving.metrics import Metrics
from vitrine.serving.open_models import ModelSlot, WeightsWatcher
from vitrine.serving.served_model import ExplainRequest, ServedModel
from vitrine.serving.uploads import check_picture, is_jpeg, num_pixels
from vitrine.spelling import nearest

MOST_DECODERS = 4
# A picture may take 20 bytes per pixel while it is decoded; larger ones than this are decoded one at a time.
LARGE_PIXELS = 8_000_000
# Batches that measure the speed by which the first requests are batched.
WARM_UP_SIZES = (1, 1, 2)


class Service:
    """The served models with their queue, limits and counters."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        limits: Limits,
        run: LiveRun | None = None,
        awaited: Sequence[ModelSlot] = (),
        slots: Sequence[ModelSlot] = (),
        workers: int = 1,
    ) -> None:
        self.models = {served.name: served for served in models}
        self.limits, self.run = limits, run
        self.slots = {slot.name: slot for slot in slots}
        self._reloading = threading.Lock()
        self.num_warm_ups = 0
        self.batcher = Batcher(
            workers=workers, target_seconds=limits.target_seconds, on_batch=self._count_batch
        )
        self.admission = Admission(limits, expected_wait=self.batcher.expected_wait)
        self.decoders = ThreadPoolExecutor(min(MOST_DECODERS, available_cores()), thread_name_prefix="decode")
        self.large_decoder = ThreadPoolExecutor(1, thread_name_prefix="decode large")
        self.metrics = Metrics(
            {
                "vitrine_requests_inside": ("Requests being computed.", lambda: self.admission.requests),
                "vitrine_waiting": ("Pictures in the queue.", lambda: self.batcher.num_waiting),
                "vitrine_held_bytes": ("Bytes of uploads in memory.", lambda: self.admission.held_bytes),
                "vitrine_target_seconds": ("Target latency.", lambda: limits.target_seconds),
            }
        )
        self.watcher = WeightsWatcher(awaited, on_weights=self._add_model)

    @property
    def num_pictures(self) -> int:
        """Pictures computed for clients."""
        return self.metrics.num_pictures - self.num_warm_ups

    @property
    def awaited(self) -> list[str]:
        """Names of the models whose runs have no weights yet."""
        return [slot.name for slot in self.watcher.awaited]

    def warm_up(self) -> None:
        """Run each model a few times, so that memory is allocated and the speed known at the first request."""
        for served in self.models.values():
            self._warm_up(served)

    def stop(self) -> None:
        """Finish the queue and end all threads."""
        self.admission.close()
        self.watcher.stop()
        self.batcher.stop()
        self.decoders.shutdown()
        self.large_decoder.shutdown()

    def find(self, name: str | None) -> ServedModel:
        """Return the model of that name, or the first one."""
        models = self.models  # a model that is added meanwhile creates a new dictionary
        if name in self.awaited or not models:
            raise RefusedError(
                UNAVAILABLE,
                "the run has no weights yet; its model is served as soon as it has, and its curves are at /run",
                retry_after=30,
            )
        if name is None:
            return next(iter(models.values()))
        if name not in models:
            near = nearest(name, list(models))[0]
            raise RefusedError(UNREADABLE, f"no model is called {name[:80]!r}; did you mean {near!r}?")
        return models[name]

    async def predict(
        self, served: ServedModel, data: bytes, *, top: int, with_logits: bool, coverage: float | None = None
    ) -> dict[str, Any]:
        """Return the most likely classes of an upload."""
        begin = time.perf_counter()
        if served.predictor.num_classes is None:
            raise RefusedError(
                UNREADABLE, f"{served.name} has no classification head; /embed returns its features"
            )
        scores = await self.computed(served, data, served.scores)
        try:
            [judged] = served.predictor.judged(scores[None], [served.name], top=top, coverage=coverage)
        except ConfigError as error:
            raise RefusedError(UNREADABLE, str(error)) from None
        return {
            "model": served.name,
            "labels": None if judged.labels is None else list(judged.labels),
            "answers": [
                {"label": answer.label, "number": answer.number, "probability": answer.probability}
                for answer in judged.answers
            ],
            "number": judged.number,
            "interval": None if judged.interval is None else list(judged.interval),
            "familiarity": judged.familiarity,
            "none_of_these": judged.none_of_these,
            "prediction_set": None if judged.prediction_set is None else list(judged.prediction_set),
            "logits": scores[: served.predictor.num_classes].tolist() if with_logits else None,
            "size": list(served.predictor.preprocess.size),
            "milliseconds": since(begin),
        }

    async def embed(self, served: ServedModel, data: bytes) -> dict[str, Any]:
        """Return the features of an upload."""
        begin = time.perf_counter()
        features = await self.computed(served, data, served.features)
        return {"model": served.name, "features": features.tolist(), "milliseconds": since(begin)}

    async def explain(
        self, served: ServedModel, data: bytes, *, layers: str, with_matrix: bool
    ) -> dict[str, Any]:
        """Return what the model attends to in an upload."""
        begin = time.perf_counter()
        if not served.has_attention:
            raise RefusedError(
                UNREADABLE, f"{served.name} is a ResNet and has no attention; serve a ViT or a hybrid"
            )
        chosen = tuple(chosen_layers(layers, served.depth))

        def explain_request(pixels: Tensor) -> ExplainRequest:
            return ExplainRequest(pixels=pixels, layers=chosen, with_matrix=with_matrix)

        explained = await self.computed(served, data, served.explanation, item=explain_request)
        return {"model": served.name, **explained, "milliseconds": since(begin)}

    def reload(self, name: str) -> None:
        """Read a model again from its source; requests in flight keep the earlier one, new ones get the new one."""
        slot = self.slots.get(name)
        if slot is None:
            raise RefusedError(UNREADABLE, f"{name} was not opened from a file, so it cannot be read again")
        with self._reloading:
            try:
                served = slot.open()
            except VitrineError as error:
                raise RefusedError(UNREADABLE, f"the earlier weights are still served: {error}") from None
            if served is None:
                raise RefusedError(UNREADABLE, "the earlier weights are still served: the run has none now")
            self._warm_up(served)
            self.models = self.models | {name: served}  # keeps the order

    async def in_thread(self, function: Any, *values: Any) -> Any:
        """Run a function beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.decoders, function, *values)

    async def computed_tensor(self, pixels: Tensor, task: Task) -> Any:
        """Compute the model's input of one picture, made by the client."""
        return await self._within_time(self.batcher.submit(task, pixels))

    async def computed(
        self,
        served: ServedModel,
        data: bytes,
        task: Task,
        *,
        item: Callable[[Tensor], Any] = lambda pixels: pixels,
    ) -> Any:
        """Decode and compute an upload in threads; cancelling this cancels the work that has not begun."""
        result: Future[Any] = Future()
        max_pixels = self.limits.pixels if is_jpeg(data) else self.limits.whole_pixels

        def decode() -> None:
            pixels = served.pixels(data, max_pixels=max_pixels)
            self.batcher.submit(task, item(pixels), future=result)

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

        self.decoders.submit(attempt, decode_if_small)
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

    def _add_model(self, slot: ModelSlot, served: ServedModel) -> None:
        """Serve a model that had no weights when the server started."""
        self._warm_up(served)
        added = {served.name: served}
        self.models = added | self.models if slot.is_first else self.models | added

    def _warm_up(self, served: ServedModel) -> None:
        preprocess = served.predictor.preprocess
        blank = torch.zeros(*preprocess.shape, dtype=torch.uint8)
        tasks = [served.scores] if served.predictor.num_classes else []
        for task in [*tasks, served.features]:
            for size in WARM_UP_SIZES:
                for future in [self.batcher.submit(task, blank) for _ in range(size)]:
                    future.result()
                self.num_warm_ups += size

    def _count_batch(self, task: Task, size: int, seconds: float) -> None:
        self.metrics.count_batch(task=task.name, size=size, seconds=seconds)


def since(begin: float) -> float:
    """Return the milliseconds since `begin`."""
    return round((time.perf_counter() - begin) * 1000, 2)
