"""Panels to one figure: bars where x are words, lines with error bars where they are numbers."""

import io
import re
from collections.abc import Sequence
from typing import Any

from vitrine.errors import MissingExtraError
from vitrine.studies.panels import Panel

COLOURS = ("#4267b2", "#d98a2b", "#5a9e6f", "#9a5ba5", "#c0504d", "#6b7280")
PAPER_COLOURS = ("#9aa3b5", "#c9b79a", "#a9c2af", "#bfa9c6", "#cfa9a8", "#b8bcc4")
WIDTH, HEIGHT = 4.6, 3.6


def draw(panels: Sequence[Panel]) -> str:
    """Return one SVG picture of all panels, side by side."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", extra="report", purpose="a study's figures") from error
    shown = [panel for panel in panels if any(panel.series.values())]
    # Text stays text, and the same results give the same bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "vitrine"}):
        figure = Figure(figsize=(WIDTH * max(len(shown), 1), HEIGHT), layout="constrained")
        if not shown:
            figure.text(0.5, 0.5, "nothing measured yet", ha="center")
        for number, panel in enumerate(shown):
            axis = figure.add_subplot(1, len(shown), number + 1)
            draw_bars(axis, panel) if has_words(panel) else draw_lines(axis, panel)
            axis.set_title(panel.title, fontsize=10)
            axis.set_ylabel(panel.y_label, fontsize=9)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
            if len(panel.series) > 1:
                axis.legend(fontsize=8, frameon=False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    # Who drew it and where that is to be found on the web says nothing about the study.
    text = re.sub(r"<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    return text[text.index("<svg") :]


def has_words(panel: Panel) -> bool:
    """Whether a panel is drawn as bars."""
    return any(isinstance(point.x, str) for points in panel.series.values() for point in points)


def draw_bars(axis: Any, panel: Panel) -> None:
    """Draw one bar a point; the axis begins below the lowest, as differences are what is looked for."""
    colours = PAPER_COLOURS if panel.is_paper else COLOURS
    words = list(dict.fromkeys(point.x for points in panel.series.values() for point in points))
    width = 0.8 / len(panel.series)
    heights = [point.y for points in panel.series.values() for point in points]
    for number, points in enumerate(panel.series.values()):
        places = [words.index(point.x) + (number + 0.5) * width - 0.4 for point in points]
        axis.bar(
            places, [point.y for point in points], width=width, color=colours[number % len(colours)],
            yerr=[point.spread or 0 for point in points] if any(point.spread for point in points) else None,
            capsize=2, label=list(panel.series)[number],
        )  # fmt: skip
    low, high = min(heights), max(heights)
    room = max((high - low) * 0.5, 1.0)
    axis.set_ylim(max(low - room, 0), high + room / 2)
    axis.set_xticks(range(len(words)), words, rotation=30, ha="right")


def draw_lines(axis: Any, panel: Panel) -> None:
    """Draw one line a series."""
    colours = PAPER_COLOURS if panel.is_paper else COLOURS
    for number, (name, points) in enumerate(panel.series.items()):
        if points:
            axis.errorbar(
                [point.x for point in points], [point.y for point in points],
                yerr=[point.spread or 0 for point in points], capsize=2, marker="o", markersize=4,
                label=name, color=colours[number % len(colours)],
            )  # fmt: skip
    if panel.is_log:
        from matplotlib.ticker import LogFormatterSciNotation, NullFormatter

        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(LogFormatterSciNotation())
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(panel.x_label, fontsize=9)
