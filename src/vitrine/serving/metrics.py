"""The counters of one server for Prometheus, in a registry of their own: a process may run two servers."""

import threading
from collections.abc import Callable, Mapping

from vitrine.errors import MissingExtraError

try:
    from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.exposition import generate_latest
except ImportError:
    raise MissingExtraError("prometheus-client", extra="serve", purpose="serving a model") from None

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Metrics:
    """The figures that /metrics reports; they can be updated from any thread."""

    def __init__(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        self.registry = CollectorRegistry()
        self.num_pictures = 0
        self._lock = threading.Lock()
        self._requests = Counter(
            "vitrine_requests", "Requests answered, by path and status.", ("path", "status"),
            registry=self.registry,
        )  # fmt: skip
        self._request_seconds = Histogram(
            "vitrine_request_seconds", "Time from the headers to the end of the response.", ("path",),
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self._pictures = Counter(
            "vitrine_pictures", "Pictures computed, by task.", ("task",), registry=self.registry
        )
        self._batch_size = Histogram(
            "vitrine_batch_size", "Pictures per batch.", ("task",), buckets=SIZES, registry=self.registry
        )
        self._batch_seconds = Histogram(
            "vitrine_batch_seconds", "Time to compute one batch.", ("task",),
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        for name, (description, value) in gauges.items():
            Gauge(name, description, registry=self.registry).set_function(value)

    def count_request(self, *, path: str, status: int, seconds: float) -> None:
        """Count one response."""
        self._requests.labels(path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    def count_batch(self, *, task: str, size: int, seconds: float) -> None:
        """Count one computed batch."""
        with self._lock:
            self.num_pictures += size
        self._pictures.labels(task).inc(size)
        self._batch_size.labels(task).observe(size)
        self._batch_seconds.labels(task).observe(seconds)

    def value(self, name: str, **labels: str) -> float:
        """Return one sample, such as `vitrine_pictures_total` for `task="logits"`; 0 where nothing was counted."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def text(self) -> bytes:
        """Return all samples in Prometheus' text format 0.0.4."""
        return generate_latest(self.registry)
