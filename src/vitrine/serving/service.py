"""The served models: the computation behind each route, the list of models, and their reloading."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitrine.errors import ConfigError, VitrineError
from vitrine.serving.admission import UNAVAILABLE, UNREADABLE, Admission, Limits, RefusedError
from vitrine.serving.answer_cache import AnswerCache
from vitrine.serving.batching import Task
from vitrine.serving.explanation import chosen_layers
from vitrine.serving.live_run import LiveRun
from vitrine.serving.location import blank_request
from vitrine.serving.metrics import Metrics
from vitrine.serving.open_models import ModelSlot, WeightsWatcher
from vitrine.serving.pipeline import Pipeline
from vitrine.serving.served_model import ExplainRequest, ServedModel
from vitrine.spelling import nearest

# Batches at the start that measure the speed for batching the first requests.
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
        cache_bytes: int = 0,
    ) -> None:
        self.models = {served.name: served for served in models}
        self.limits, self.run = limits, run
        self.slots = {slot.name: slot for slot in slots}
        self._reloading = threading.Lock()
        self.num_warm_ups = 0
        self.cache = AnswerCache(cache_bytes) if cache_bytes else None
        self.pipeline = Pipeline(limits, workers=workers, on_batch=self._count_batch, cache=self.cache)
        self.batcher = self.pipeline.batcher
        self.admission = Admission(limits, expected_wait=self.batcher.expected_wait)
        self.metrics = Metrics(
            {
                "vitrine_requests_inside": ("Requests being computed.", lambda: self.admission.requests),
                "vitrine_waiting": ("Pictures in the queue.", lambda: self.batcher.num_waiting),
                "vitrine_held_bytes": ("Bytes of uploads in memory.", lambda: self.admission.held_bytes),
                "vitrine_target_seconds": ("Target latency.", lambda: limits.target_seconds),
                "vitrine_cached_answers": ("Answers in the cache.", lambda: len(self.cache or ())),
                "vitrine_cache_hits": (
                    "Answers that came from the cache.",
                    lambda: self.cache.counts.hits if self.cache else 0,
                ),
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
        self.pipeline.stop()

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
        if served.answers != "classes":
            raise RefusedError(
                UNREADABLE, f"{served.name} answers with {served.answers}; /locate returns them"
            )
        if served.predictor.num_classes is None:
            raise RefusedError(
                UNREADABLE, f"{served.name} has no classification head; /embed returns its features"
            )
        scores = await self.pipeline.computed(served, data, served.scores)
        try:
            [judged] = served.predictor.predictions(scores[None], [served.name], top=top, coverage=coverage)
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

    async def locate(self, served: ServedModel, data: bytes, *, least: float) -> dict[str, Any]:
        """Return the mask of an upload, or its boxes with at least this score."""
        begin = time.perf_counter()
        if served.answers == "classes":
            raise RefusedError(
                UNREADABLE, f"{served.name} answers with classes of whole pictures; /predict returns them"
            )
        located = await self.pipeline.computed(served, data, served.location, prepare=served.located)
        if located["boxes"] is not None:
            located["boxes"] = [one for one in located["boxes"] if one["score"] >= least]
        return {"model": served.name, **located, "milliseconds": since(begin)}

    async def embed(self, served: ServedModel, data: bytes) -> dict[str, Any]:
        """Return the features of an upload."""
        begin = time.perf_counter()
        features = await self.pipeline.computed(served, data, served.features)
        return {"model": served.name, "features": features.tolist(), "milliseconds": since(begin)}

    async def explain(
        self, served: ServedModel, data: bytes, *, layers: str, with_matrix: bool
    ) -> dict[str, Any]:
        """Return the attention of the model in an upload."""
        begin = time.perf_counter()
        if served.answers != "classes":
            raise RefusedError(
                UNREADABLE,
                f"{served.name} answers with {served.answers}; its attention is not served",
            )
        if not served.has_attention:
            raise RefusedError(
                UNREADABLE, f"{served.name} is a ResNet and has no attention; serve a ViT or a hybrid"
            )
        chosen = tuple(chosen_layers(layers, served.depth))

        def explain_request(pixels: Tensor) -> ExplainRequest:
            return ExplainRequest(pixels=pixels, layers=chosen, with_matrix=with_matrix)

        explained = await self.pipeline.computed(served, data, served.explanation, item=explain_request)
        return {"model": served.name, **explained, "milliseconds": since(begin)}

    def reload(self, name: str) -> None:
        """Read a model again from its source; requests in flight keep the earlier one, new ones get the new one."""
        slot = self.slots.get(name)
        if slot is None:
            raise RefusedError(UNREADABLE, f"{name} was not opened from a file, so it cannot be reloaded")
        with self._reloading:
            try:
                served = slot.open(is_fresh=True)
            except VitrineError as error:
                raise RefusedError(UNREADABLE, f"the earlier weights are still served: {error}") from None
            if served is None:
                raise RefusedError(
                    UNREADABLE, "the earlier weights are still served: the run no longer has weights"
                )
            self._warm_up(served)
            earlier = self.models.get(name)
            self.models = self.models | {name: served}  # keeps the order
            if self.cache is not None and earlier is not None:
                self.cache.forget(earlier.version)

    def _add_model(self, slot: ModelSlot, served: ServedModel) -> None:
        """Serve a model that had no weights when the server started."""
        self._warm_up(served)
        added = {served.name: served}
        self.models = added | self.models if slot.is_first else self.models | added

    def _warm_up(self, served: ServedModel) -> None:
        preprocess = served.predictor.preprocess
        blank = torch.zeros(*preprocess.shape, dtype=torch.uint8)
        items: dict[Task, Any] = {served.features: blank}
        if served.answers != "classes":
            items = {served.location: blank_request(preprocess)}
        elif served.predictor.num_classes:
            items = {served.scores: blank, served.features: blank}
        for task, item in items.items():
            for size in WARM_UP_SIZES:
                for future in [self.batcher.submit(task, item) for _ in range(size)]:
                    future.result()
                self.num_warm_ups += size

    def _count_batch(self, task: Task, size: int, seconds: float) -> None:
        self.metrics.count_batch(task=task.name, size=size, seconds=seconds)


def since(begin: float) -> float:
    """Return the milliseconds since `begin`."""
    return round((time.perf_counter() - begin) * 1000, 2)
