"""A run's records to charts: lines in the coordinates of an SVG, with ticks at round numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 480, 210
MOST_POINTS = 400
NUM_TICKS = 5
# Title, unit, what a value is multiplied with, and the records' names with the words for them.
CHARTS = (
    ("Loss", "", 1, {"loss": "training", "val_loss": "validation"}),
    ("Accuracy", "%", 100, {"accuracy": "training", "val_accuracy": "validation"}),
    ("Learning rate", "", 1, {"lr": "learning rate"}),
    ("Speed", "images/s", 1, {"images_per_second": "images a second"}),
)
_USUAL = {name for *_, names in CHARTS for name in names}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve: what it is, the points of an SVG polyline, and its last value in words."""

    name: str
    points: str
    last: str
    is_single: bool
    """A single point is drawn as a dot."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves that share their axes, and the ticks of these: (place in pixels, words)."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]


def charts_of(records: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw what the records of metrics.jsonl hold: the usual curves, then every other number of an evaluation."""
    others = sorted({name for record in records for name in record if name.startswith("val_")} - _USUAL)
    plans = [
        *CHARTS,
        *((name.removeprefix("val_").replace("_", " "), "", 1, {name: "validation"}) for name in others),
    ]
    charts = []
    for title, unit, factor, names in plans:
        curves = {words: _curve(records, name, factor) for name, words in names.items()}
        curves = {words: curve for words, curve in curves.items() if curve}
        if curves:
            charts.append(_chart(title[:1].upper() + title[1:], unit, curves))
    return charts


def round_ticks(low: float, high: float, *, count: int = NUM_TICKS) -> list[float]:
    """Choose about `count` round numbers (1, 2 or 5 times a power of ten) from `low` to `high`."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _curve(records: Sequence[Mapping[str, Any]], name: str, factor: float) -> list[tuple[float, float]]:
    points = [
        (float(record["step"]), factor * float(record[name]))
        for record in records
        if isinstance(record.get(name), int | float) and math.isfinite(record[name])
    ]
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(at * (len(points) - 1) / (MOST_POINTS - 1))] for at in range(MOST_POINTS)]


def _chart(title: str, unit: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Chart:
    values = [value for curve in curves.values() for _, value in curve]
    steps = [step for curve in curves.values() for step, _ in curve]
    low, high = min(values), max(values)
    low = 0.0 if 0 <= low < high / 2 else low  # a curve that comes near zero shows where zero is
    if high == low:
        low, high = low - abs(low) / 2 - 1e-9, high + abs(high) / 2 + 1e-9
    end = max(steps)

    def at(step: float, value: float) -> tuple[float, float]:
        return round(WIDTH * step / max(end, 1), 1), round(HEIGHT * (high - value) / (high - low), 1)

    lines = tuple(
        Line(
            name=name,
            points=" ".join(f"{x},{y}" for x, y in (at(*point) for point in curve)),
            last=_words(curve[-1][1]),
            is_single=len(curve) == 1,
        )
        for name, curve in curves.items()
    )
    return Chart(
        title=title,
        unit=unit,
        lines=lines,
        across=tuple((at(step, 0)[0], f"{step:,.0f}") for step in round_ticks(0, end) if step == int(step)),
        up=tuple((at(0, value)[1], _words(value)) for value in round_ticks(low, high)),
    )


def _words(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
