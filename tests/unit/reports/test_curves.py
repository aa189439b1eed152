import pytest

from vitrine.reports.curves import HEIGHT, MOST_POINTS, WIDTH, charts_of, round_ticks


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


def points(line):
    return [tuple(map(float, point.split(","))) for point in line.points.split()]


def test_the_first_point_the_largest_and_the_last_lie_where_they_should():
    records = [{"step": 0, "loss": 4.0}, {"step": 5, "loss": 1.0}, {"step": 10, "loss": 2.0}]
    [chart] = charts_of(records)
    # From 0, since the smallest is less than half the largest.
    assert points(chart.lines[0]) == [(0, 0), (WIDTH / 2, HEIGHT * 0.75), (WIDTH, HEIGHT / 2)]
    assert chart.lines[0].last == "2"


def test_training_and_validation_share_a_chart_and_other_figures_get_their_own():
    records = [
        {"step": 1, "loss": 2.0, "accuracy": 0.1, "lr": 1e-3},
        {"step": 2, "val_loss": 1.0, "val_accuracy": 0.5, "val_nearest_neighbour": 0.25},
    ]
    charts = {chart.title: chart for chart in charts_of(records)}
    assert [line.name for line in charts["Loss"].lines] == ["training", "validation"]
    assert charts["Accuracy"].lines[1].last == "50"
    assert charts["Nearest neighbour"].lines[0].is_single
    assert set(charts) == {"Loss", "Accuracy", "Learning rate", "Nearest neighbour"}


def test_what_is_not_finite_is_left_out_and_long_runs_are_thinned_to_both_ends():
    records = [{"step": step, "loss": float(step)} for step in range(1, 5001)]
    records[7]["loss"] = float("nan")
    [chart] = charts_of(records)
    found = points(chart.lines[0])
    assert len(found) == MOST_POINTS
    assert found[-1] == (WIDTH, 0)
    assert chart.lines[0].last == "5,000"


def test_nothing_recorded_nothing_drawn():
    assert charts_of([]) == []
    assert charts_of([{"step": 3}]) == []
