"""What happens to one picture between its last byte and its answer, off the event loop.

Decoding runs in a few threads, the model in others that batch; the event loop only waits. Nothing of an upload is
kept: bytes and pixels are let go with the answer.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from vitrine.errors import DataError
from vitrine.runtime.cores import available_cores
from vitrine.serving.admission import Admission
from vitrine.serving.arrivals import Arrivals
from vitrine.serving.batching import Batcher, Task
from vitrine.serving.explaining import chosen_layers
from vitrine.serving.hosting import Hosted, Wish
from vitrine.serving.limits import Limits
from vitrine.serving.live_run import LiveRun
from vitrine.serving.opening import Seat
from vitrine.serving.prometheus import SECONDS, SIZES, Counter, Gauge, Histogram
from vitrine.serving.refusals import UNAVAILABLE, UNREADABLE, RefusedError, refused
from vitrine.serving.uploads import check_picture, is_jpeg, num_pixels
from vitrine.spelling import nearest

MOST_DECODERS = 4
# A picture may need 20 bytes a pixel while it is unpacked; larger ones than this go one at a time.
LARGE_PIXELS = 8_000_000
# Batches that set the speed by which the first requests are batched.
WARM_UP_SIZES = (1, 1, 2)


class Service:
    """The models in service with their queue, their limits and their counters."""

    def __init__(
        self,
        models: Sequence[Hosted],
        *,
        limits: Limits,
        run: LiveRun | None = None,
        awaited: Sequence[Seat] = (),
        workers: int = 1,
    ) -> None:
        self.models = {hosted.name: hosted for hosted in models}
        self.limits, self.run = limits, run
        self.num_warm_ups = 0
        self.batch_sizes = Histogram("vitrine_batch_size", "Pictures in one batch.", bounds=SIZES)
        self.batch_seconds = Histogram(
            "vitrine_batch_seconds", "Time that one batch is computed in.", bounds=SECONDS
        )
        self.pictures = Counter("vitrine_pictures_total", "Pictures computed, by what was wanted of them.")
        self.batcher = Batcher(
            workers=workers, target_seconds=limits.target_seconds, on_batch=self._count_batch
        )
        self.admission = Admission(limits, expected_wait=self.batcher.expected_wait)
        self.decoders = ThreadPoolExecutor(min(MOST_DECODERS, available_cores()), thread_name_prefix="decode")
        self.large_decoder = ThreadPoolExecutor(1, thread_name_prefix="decode large")
        self.gauges = [
            Gauge("vitrine_requests_inside", "Requests being answered.", lambda: self.admission.requests),
            Gauge("vitrine_waiting", "Pictures that no worker has yet.", lambda: self.batcher.num_waiting),
            Gauge("vitrine_held_bytes", "Bytes of uploads in memory.", lambda: self.admission.held_bytes),
            Gauge("vitrine_target_seconds", "The latency aimed at.", lambda: limits.target_seconds),
        ]
        self.arrivals = Arrivals(awaited, on_arrival=self._admit)

    @property
    def awaited(self) -> list[str]:
        """Names of the models whose runs have no weights so far."""
        return [seat.name for seat in self.arrivals.awaited]

    def warm_up(self) -> None:
        """Run each model a few times, so that the first request finds memory made and the speed known."""
        for hosted in self.models.values():
            self._warm_up(hosted)

    def stop(self) -> None:
        """Finish what is in the queue and end all threads."""
        self.admission.close()
        self.arrivals.stop()
        self.batcher.stop()
        self.decoders.shutdown()
        self.large_decoder.shutdown()

    def find(self, name: str | None) -> Hosted:
        """Return the model of that name, the first one without a name."""
        models = self.models  # one that arrives meanwhile makes a new dictionary
        if name in self.awaited or not models:
            raise RefusedError(
                UNAVAILABLE,
                "the run has saved no weights yet and answers once it has; its curves are at /run",
                retry_after=30,
            )
        if name is None:
            return next(iter(models.values()))
        if name not in models:
            near = nearest(name, list(models))[0]
            raise RefusedError(UNREADABLE, f"no model here is called {name[:80]!r}; did you mean {near!r}?")
        return models[name]

    async def predict(self, hosted: Hosted, data: bytes, *, top: int, with_logits: bool) -> dict[str, Any]:
        """Name the most likely classes of an upload."""
        begin = time.perf_counter()
        if hosted.predictor.num_classes is None:
            raise RefusedError(
                UNREADABLE, f"{hosted.name} has no head, so it names no classes; /embed gives its features"
            )
        logits = await self._computed(hosted, data, hosted.logits)
        [answers] = hosted.predictor.best(logits[None], top=top)
        return {
            "model": hosted.name,
            "answers": [
                {"label": answer.label, "number": answer.number, "probability": answer.probability}
                for answer in answers
            ],
            "logits": logits.tolist() if with_logits else None,
            "size": list(hosted.predictor.preprocess.size),
            "milliseconds": since(begin),
        }

    async def embed(self, hosted: Hosted, data: bytes) -> dict[str, Any]:
        """Return the features of an upload."""
        begin = time.perf_counter()
        features = await self._computed(hosted, data, hosted.features)
        return {"model": hosted.name, "features": features.tolist(), "milliseconds": since(begin)}

    async def explain(self, hosted: Hosted, data: bytes, *, layers: str, with_matrix: bool) -> dict[str, Any]:
        """Return what the model attends to in an upload."""
        begin = time.perf_counter()
        if not hosted.has_attention:
            raise RefusedError(
                UNREADABLE, f"{hosted.name} is a ResNet and has no attention; a ViT or a hybrid would do"
            )
        chosen = tuple(chosen_layers(layers, hosted.depth))

        def wish(pixels: Tensor) -> Wish:
            return Wish(pixels=pixels, layers=chosen, with_matrix=with_matrix)

        found = await self._computed(hosted, data, hosted.explanation, item=wish)
        return {"model": hosted.name, **found, "milliseconds": since(begin)}

    async def in_thread(self, function: Any, *values: Any) -> Any:
        """Run what takes a moment beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.decoders, function, *values)

    async def _computed(
        self,
        hosted: Hosted,
        data: bytes,
        task: Task,
        *,
        item: Callable[[Tensor], Any] = lambda pixels: pixels,
    ) -> Any:
        """Let an upload be decoded and computed; the event loop hears of it once, when there is an answer."""
        answer: Future[Any] = Future()
        max_pixels = self.limits.pixels if is_jpeg(data) else self.limits.whole_pixels

        def decode() -> None:
            pixels = hosted.pixels(data, max_pixels=max_pixels)
            self.batcher.submit(task, item(pixels), future=answer)

        def decode_if_small() -> None:
            check_picture(data, max_pixels=max_pixels)
            if num_pixels(data) > LARGE_PIXELS:
                self.large_decoder.submit(attempt, decode)
            else:
                decode()

        def attempt(work: Callable[[], None]) -> None:
            if answer.cancelled():
                return
            try:
                work()
            except Exception as error:  # whatever it is, somebody waits to hear of it
                with suppress(InvalidStateError):  # unless they have given up meanwhile
                    answer.set_exception(refused(error) if isinstance(error, DataError) else error)

        self.decoders.submit(attempt, decode_if_small)
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise RefusedError(
                UNAVAILABLE,
                f"there was no answer within {self.limits.answer_seconds:g} seconds; try again later",
                retry_after=self.batcher.expected_wait(),
            ) from None

    def _admit(self, seat: Seat, hosted: Hosted) -> None:
        """Let a model answer that had no weights when serving began."""
        self._warm_up(hosted)
        arrived = {hosted.name: hosted}
        self.models = arrived | self.models if seat.is_first else self.models | arrived

    def _warm_up(self, hosted: Hosted) -> None:
        preprocess = hosted.predictor.preprocess
        blank = torch.zeros(preprocess.channels, *preprocess.size, dtype=torch.uint8)
        tasks = [hosted.logits] if hosted.predictor.num_classes else []
        for task in [*tasks, hosted.features]:
            for size in WARM_UP_SIZES:
                for future in [self.batcher.submit(task, blank) for _ in range(size)]:
                    future.result()
                self.num_warm_ups += size

    def _count_batch(self, task: Task, size: int, seconds: float) -> None:
        self.batch_sizes.observe(size, task=task.name)
        self.batch_seconds.observe(seconds, task=task.name)
        self.pictures.add(size, task=task.name)


def since(begin: float) -> float:
    """Milliseconds from `begin` until now."""
    return round((time.perf_counter() - begin) * 1000, 2)
