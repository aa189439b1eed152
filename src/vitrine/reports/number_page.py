"""The page of a model of numbers: predicted against true numbers, and the pictures with the largest errors."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.source import Source
from vitrine.evaluation.number_line import NumberFigures
from vitrine.reports.charts import round_ticks
from vitrine.reports.pages import render, thumbnail
from vitrine.spelling import printable

SIDE, MARGIN = 360, 48
MOST_DOTS, MOST_CARDS = 2000, 12
SPARE = 0.04


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A square plot with the same numbers on both sides."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return the pixels from the start of the axis."""
        return round(SIDE * (value - self.low) / (self.high - self.low), 1)


def render_numbers(
    source: Source,
    predicted: NDArray[np.float64],
    true: NDArray[np.float64],
    figures: NumberFigures,
    *,
    title: str,
    model: str,
    is_left_out: bool = False,
) -> str:
    """Render predictions (N,) and true numbers (N,) of the images of a source."""
    low, high = float(min(predicted.min(), true.min())), float(max(predicted.max(), true.max()))
    spare = SPARE * (high - low) or 1.0
    axis = Axis(low=low - spare, high=high + spare)
    shown = np.random.default_rng(0).permutation(len(true))[:MOST_DOTS]
    worst = np.argsort(-np.abs(true - predicted), kind="stable")[:MOST_CARDS]
    half = figures.half_width
    return render(
        "numbers.html.j2",
        title=title,
        model=printable(model),
        figures=figures,
        name=printable(figures.name),
        is_left_out=is_left_out,
        side=SIDE,
        margin=MARGIN,
        dots=[(axis.place(true[row]), SIDE - axis.place(predicted[row])) for row in shown],
        ticks=[(axis.place(value), f"{value:g}") for value in round_ticks(axis.low, axis.high)],
        band=None if half is None else SIDE * half / (axis.high - axis.low),
        cards=[
            {
                "picture": thumbnail(source, int(row)),
                "path": printable(source.name(int(row))),
                "true": f"{true[row]:.4g}",
                "predicted": f"{predicted[row]:.4g}",
            }
            for row in worst
        ],
    )
