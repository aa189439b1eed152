"""What a figure shows, without a word on how it is drawn: points with their spread, ours and the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrine.studies.results import Results, mean_and_spread


@dataclass(frozen=True, kw_only=True)
class Point:
    """One mean; `x` is a number, or a word where the panel has bars."""

    x: Any
    y: float
    spread: float | None = None
    seeds: int = 1


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes; with words for x it is drawn as bars."""

    title: str
    y_label: str
    series: dict[str, tuple[Point, ...]]
    x_label: str = ""
    is_log: bool = False
    is_paper: bool = False
    """Whether these are the paper's own points."""


def point(results: Results, x: Any, *, measure: str = "", **settings: Any) -> tuple[Point, ...]:
    """Return the mean over seeds at x, or nothing where it was not measured."""
    values = results.values(measure, **settings)
    if not values:
        return ()
    mean, spread = mean_and_spread([100 * value for value in values])
    return (Point(x=x, y=mean, spread=spread, seeds=len(values)),)


def bars(
    results: Results, setting: str, options: Sequence[Any], *, measure: str = "", **fixed: Any
) -> tuple[Point, ...]:
    """Return one point for each option of a setting."""
    found: list[Point] = []
    for option in options:
        found += point(results, str(option), measure=measure, **{setting: option}, **fixed)
    return tuple(found)


def paper_bars(values: dict[str, float]) -> tuple[Point, ...]:
    """Return the paper's own numbers as points."""
    return tuple(Point(x=name, y=value) for name, value in values.items())
