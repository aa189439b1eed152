"""Charts of all pages: lines or dots with error bars, drawn as inline SVG in the page's own colours.

A chart is data: series of points. `lay_out` turns it into coordinates, and the templates `charts.html.j2` (in a page)
and `charts.svg.j2` (a file of its own) draw those. Nothing but jinja2 is needed, text stays text, colours follow the
reader's theme, and equal data gives equal bytes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitrine.reports.pages import render

WIDTH, HEIGHT = 480, 210
NUM_TICKS = 5
# Words below dots are slanted by 35 degrees; a letter of 12 px is about 6 px wide.
LETTER, SLANT, MOST_LETTERS = 6.0, 35, 26
FILE_MARGIN = 64


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value; `x` is a number, or a word in a chart of dots."""

    x: float | str
    y: float
    spread: float | None = None
    """Half the length of the error bar: the standard deviation over seeds."""
    seeds: int = 1


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Series that share a pair of axes; they are drawn as dots if x is a word.

    Bars would have to begin at zero, where small differences cannot be seen.
    """

    title: str
    y_label: str
    series: Mapping[str, Sequence[Point]]
    x_label: str = ""
    is_log: bool = False
    """Whether the x axis is logarithmic."""
    is_paper: bool = False
    """Whether these are the paper's own points, drawn paler."""
    has_dots: bool = True
    """Whether each point of a line has a dot; a training curve has too many."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One point in pixels, with its error bar from `low` to `high` and the text shown on hover."""

    x: float
    y: float
    words: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One series in pixels."""

    name: str
    number: int
    """Chooses the colour."""
    marks: tuple[Mark, ...]
    last: str
    """The last value, for the legend."""
    is_line: bool = True
    """Whether the points are joined; dots above words are not."""

    @property
    def path(self) -> str:
        """The points of an SVG polyline."""
        return " ".join(f"{mark.x},{mark.y}" for mark in self.marks)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A chart in pixels: curves, and ticks as (place, words)."""

    chart: Chart
    curves: tuple[Curve, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    bottom: float
    """Height in pixels of the words below the x axis."""
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def has_words(self) -> bool:
        """Whether words stand below the axis; they are slanted."""
        return _has_words(self.chart)


def lay_out(chart: Chart) -> Layout:
    """Compute the coordinates of a chart that has at least one point."""
    return _dots(chart) if _has_words(chart) else _lines(chart)


def lay_out_all(charts: Sequence[Chart]) -> list[Layout]:
    """Compute the coordinates of every chart that has points."""
    return [lay_out(chart) for chart in charts if any(chart.series.values())]


def svg_file(charts: Sequence[Chart]) -> str:
    """Draw charts one below the other as one SVG file with its own light and dark colours."""
    layouts = lay_out_all(charts)
    heights = [layout.height + layout.bottom + FILE_MARGIN for layout in layouts]
    places = [sum(heights[:number]) for number in range(len(heights))]
    return render(
        "charts.svg.j2",
        layouts=list(zip(places, layouts, strict=True)),
        width=WIDTH + 2 * FILE_MARGIN,
        height=sum(heights) or FILE_MARGIN,
    )


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


def log_ticks(low: float, high: float) -> list[float]:
    """Choose powers of ten from `low` to `high`; with fewer than three, also 2 and 5 times them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) >= 3:
            return inside
    return inside or [low, high]


def value_text(value: float) -> str:
    """Write a value with at most four digits, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _has_words(chart: Chart) -> bool:
    return any(isinstance(point.x, str) for points in chart.series.values() for point in points)


def _range(chart: Chart) -> tuple[float, float]:
    """Choose the ends of the y axis; dots keep some distance from both."""
    points = [point for points in chart.series.values() for point in points]
    low = min(point.y - (point.spread or 0) for point in points)
    high = max(point.y + (point.spread or 0) for point in points)
    if _has_words(chart):
        margin = 0.1 * (high - low) or max(0.1 * abs(high), 1.0)
        return low - margin, high + margin
    if 0 <= low < high / 2:  # a curve that comes near zero shows where zero is
        low = 0.0
    if high == low:
        return low - abs(low) / 2 - 1e-9, high + abs(high) / 2 + 1e-9
    return low, high


def _mark(point: Point, x: float, low: float, high: float) -> Mark:
    def y(value: float) -> float:
        return round(HEIGHT * (high - value) / (high - low), 1)

    spread = "" if point.spread is None else f" ± {value_text(point.spread)}"
    name = point.x if isinstance(point.x, str) else value_text(point.x)
    return Mark(
        x=round(x, 1),
        y=y(point.y),
        words=f"{name}: {value_text(point.y)}{spread}",
        low=y(point.y - point.spread) if point.spread else None,
        high=y(point.y + point.spread) if point.spread else None,
    )


def _y_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    return tuple(
        (round(HEIGHT * (high - value) / (high - low), 1), value_text(value))
        for value in round_ticks(low, high)
    )


def _lines(chart: Chart) -> Layout:
    low, high = _range(chart)
    across = [float(point.x) for points in chart.series.values() for point in points]
    start, end = (min(across), max(across)) if chart.is_log else (min(0.0, *across), max(across))

    def x(value: float) -> float:
        if chart.is_log:
            return WIDTH * math.log(value / start) / (math.log(end / start) or 1)
        return WIDTH * (value - start) / ((end - start) or 1)

    curves = tuple(
        Curve(
            name=name,
            number=number,
            marks=tuple(_mark(point, x(float(point.x)), low, high) for point in points),
            last=value_text(points[-1].y),
        )
        for number, (name, points) in enumerate(chart.series.items())
        if points
    )
    ticks = log_ticks(start, end) if chart.is_log else round_ticks(start, end)
    return Layout(
        chart=chart,
        curves=curves,
        x_ticks=tuple(
            (round(x(tick), 1), f"{tick:g}" if chart.is_log else value_text(tick)) for tick in ticks
        ),
        y_ticks=_y_ticks(low, high),
        bottom=46 if chart.x_label else 28,
    )


def _dots(chart: Chart) -> Layout:
    low, high = _range(chart)
    words = list(dict.fromkeys(str(point.x) for points in chart.series.values() for point in points))
    slot = WIDTH / len(words)
    apart = 0.8 * slot / len(chart.series)
    curves = tuple(
        Curve(
            name=name,
            number=number,
            is_line=False,
            last="",
            marks=tuple(
                _mark(point, slot * (words.index(str(point.x)) + 0.1) + apart * (number + 0.5), low, high)
                for point in points
            ),
        )
        for number, (name, points) in enumerate(chart.series.items())
        if points
    )
    longest = min(max(map(len, words)), MOST_LETTERS)
    return Layout(
        chart=chart,
        curves=curves,
        x_ticks=tuple((round(slot * (place + 0.5), 1), _shortened(word)) for place, word in enumerate(words)),
        y_ticks=_y_ticks(low, high),
        bottom=round(26 + LETTER * longest * math.sin(math.radians(SLANT))),
    )


def _shortened(word: str) -> str:
    return word if len(word) <= MOST_LETTERS else f"{word[: MOST_LETTERS - 1]}…"
