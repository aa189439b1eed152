"""Counters, gauges and histograms in Prometheus' text format 0.0.4.

Our own hundred lines rather than prometheus-client: that one keeps a registry for the whole process, which two
servers in one process (tests do that) would share, and all we need of it is how to write numbers down.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

Labels = tuple[tuple[str, str], ...]


class Metric:
    """What all kinds share: a name, a help text, and a lock for the threads that write."""

    kind = ""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self._lock = threading.Lock()

    def lines(self) -> list[str]:
        """Return its samples."""
        raise NotImplementedError

    def write(self) -> list[str]:
        """Return its lines, head included."""
        return [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} {self.kind}", *self.lines()]


class Counter(Metric):
    """A number that only grows, one for each set of labels."""

    kind = "counter"

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count `amount` more under these labels."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + amount

    @property
    def total(self) -> float:
        """All that was counted, whatever its labels."""
        with self._lock:
            return sum(self._values.values())

    def lines(self) -> list[str]:
        """Return a sample for each set of labels seen."""
        with self._lock:
            return [sample(self.name, value, labels) for labels, value in sorted(self._values.items())]


class Gauge(Metric):
    """A number that is asked for when it is read."""

    kind = "gauge"

    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        super().__init__(name, text)
        self._value = value

    def lines(self) -> list[str]:
        """Return the number as it is now."""
        return [sample(self.name, self._value())]


class Histogram(Metric):
    """How many observations fell at or below each bound."""

    kind = "histogram"

    def __init__(self, name: str, text: str, *, bounds: Sequence[float]) -> None:
        super().__init__(name, text)
        self.bounds = tuple(bounds)
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, value: float, **labels: str) -> None:
        """Count one observation under these labels."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            counts, total = self._series.setdefault(key, ([0] * (len(self.bounds) + 1), [0.0]))
            counts[bisect_left(self.bounds, value)] += 1
            total[0] += value

    def lines(self) -> list[str]:
        """Return cumulative counts, their sum and their number for each set of labels seen."""
        found = []
        with self._lock:
            for labels, (counts, total) in sorted(self._series.items()):
                below = 0
                for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                    below += count
                    found.append(sample(f"{self.name}_bucket", below, (*labels, ("le", number(bound)))))
                found.append(sample(f"{self.name}_sum", total[0], labels))
                found.append(sample(f"{self.name}_count", below, labels))
        return found


def render(metrics: Sequence[Metric]) -> str:
    """Write all metrics as one text."""
    return "\n".join(line for metric in metrics for line in metric.write()) + "\n"


def sample(name: str, value: float, labels: Labels = ()) -> str:
    """Write one line: name, labels, value."""
    inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels)
    return f"{name}{{{inside}}} {number(value)}" if inside else f"{name} {number(value)}"


def escaped(text: str) -> str:
    """Escape what the format gives a meaning to."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """Write a number as Prometheus reads it."""
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
