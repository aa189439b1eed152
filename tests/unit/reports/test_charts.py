import itertools
import re
from xml.etree import ElementTree

import pytest

from vitrine.reports.charts import (
    HEIGHT,
    WIDTH,
    Chart,
    Point,
    lay_out,
    lay_out_all,
    log_ticks,
    round_ticks,
    svg_file,
)
from vitrine.reports.run_page import MOST_POINTS, curves_of


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (16, 98, [20, 40, 60, 80]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.8, 2.3, [1.0, 1.5, 2.0]),
        (0, 7, [0, 2, 4, 6]),
        (5, 5, [5]),
        (-3, 3, [-2, 0, 2]),
    ],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, ticks):
    assert round_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.03, 30, [0.1, 1, 10]), (1, 10, [1, 2, 5, 10]), (1e-4, 1, [1e-4, 1e-3, 1e-2, 0.1, 1]), (3, 3, [3, 3])],
)
def test_ticks_of_a_logarithmic_axis_are_powers_of_ten_or_halves_of_them(low, high, ticks):
    assert log_ticks(low, high) == pytest.approx(ticks)


def places(curve):
    return [(mark.x, mark.y) for mark in curve.marks]


def test_the_first_point_the_largest_and_the_last_lie_where_they_should():
    records = [{"step": 0, "loss": 4.0}, {"step": 5, "loss": 1.0}, {"step": 10, "loss": 2.0}]
    [layout] = lay_out_all(curves_of(records))
    # From 0, since the smallest is less than half the largest.
    assert places(layout.curves[0]) == [(0, 0), (WIDTH / 2, HEIGHT * 0.75), (WIDTH, HEIGHT / 2)]
    assert layout.curves[0].last == "2"


def test_training_and_validation_share_a_chart_and_other_figures_get_their_own():
    records = [
        record
        for step in (1, 3)
        for record in (
            {"step": step, "loss": 2.0, "accuracy": 0.1, "lr": 1e-3},
            {"step": step + 1, "val_loss": 1.0, "val_accuracy": 0.5, "val_nearest_neighbour": 0.25},
            {"step": step + 1, "raw_val_loss": 1.5},
        )
    ]
    charts = {chart.title: chart for chart in curves_of(records)}
    assert list(charts["Loss"].series) == ["training", "validation", "validation, raw weights"]
    assert charts["Accuracy"].series["validation"] == [Point(x=2, y=50), Point(x=4, y=50)]
    assert set(charts) == {"Loss", "Accuracy", "Learning rate", "Nearest neighbour"}


def test_values_that_are_not_finite_are_skipped_and_long_runs_are_thinned_to_both_ends():
    records = [{"step": step, "loss": float(step)} for step in range(1, 5001)]
    records[7]["loss"] = float("nan")
    [chart] = curves_of(records)
    curve = lay_out(chart).curves[0]
    assert len(curve.marks) == MOST_POINTS
    assert places(curve)[-1] == (WIDTH, 0)
    assert curve.last == "5,000"


def test_nothing_recorded_nothing_drawn():
    assert curves_of([]) == []
    assert curves_of([{"step": 3}]) == []


def test_error_bars_reach_one_spread_to_either_side():
    points = [Point(x=0, y=10, spread=5), Point(x=10, y=10)]
    curve = lay_out(Chart(title="t", y_label="", series={"a": points})).curves[0]
    low, high = curve.marks[0].low, curve.marks[0].high
    assert low > curve.marks[0].y > high
    assert low - curve.marks[0].y == pytest.approx(curve.marks[0].y - high)
    assert curve.marks[1].low is None


def test_dots_of_one_word_stand_side_by_side_inside_its_part_of_the_axis():
    series = {
        name: [Point(x=word, y=50 + number) for number, word in enumerate("xyz")] for name in ("a", "b")
    }
    layout = lay_out(Chart(title="t", y_label="", series=series))
    places = sorted(mark.x for curve in layout.curves for mark in curve.marks)
    assert all(right - left > 10 for left, right in itertools.pairwise(places))
    assert [int(place // (WIDTH / 3)) for place in places] == [0, 0, 1, 1, 2, 2]
    assert not any(curve.is_line for curve in layout.curves)
    assert [words for _, words in layout.x_ticks] == ["x", "y", "z"]


def test_a_logarithmic_axis_gives_every_decade_the_same_width():
    chart = Chart(title="t", y_label="", is_log=True, series={"a": [Point(x=x, y=1) for x in (1, 10, 100)]})
    assert [mark.x for mark in lay_out(chart).curves[0].marks] == pytest.approx([0, WIDTH / 2, WIDTH])


def test_a_single_point_on_a_logarithmic_axis_is_drawn():
    chart = Chart(title="t", y_label="", is_log=True, series={"a": [Point(x=3.0, y=1)]})
    assert lay_out(chart).curves[0].marks[0].x == 0


def test_a_file_of_charts_is_well_formed_escapes_names_and_follows_the_theme():
    chart = Chart(
        title="<script>", y_label="%", series={"a & b": [Point(x="<b>", y=3.0, spread=1.0)], "c": []}
    )
    text = svg_file([chart])
    ElementTree.fromstring(text)
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "prefers-color-scheme: dark" in text
    assert not re.findall(r"https?://(?!www\.w3\.org)", text)
    assert text == svg_file([chart])
    ElementTree.fromstring(svg_file([]))
