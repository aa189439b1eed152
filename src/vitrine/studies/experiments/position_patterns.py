"""The similarity of learned position embeddings, and what it depends on (Fig. 7, centre; appendix D.4, Fig. 10)."""

import itertools
import math
import statistics
from collections.abc import Sequence

from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import at_best_rates, lengthened
from vitrine.studies.inside import SIMILARITY
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Result, Results
from vitrine.studies.scales import from_scratch, vit
from vitrine.studies.verdicts import Finding, above, error_of

# Fig. 10: 7 epochs at a low rate with little decay; twice the rate and ten times the decay; the same for 14 epochs.
# Factors on the scale's rate, decay and steps.
SETTINGS = {
    "short, half the rate, a tenth of the decay": (0.5, 0.1, 0.5),
    "short": (1.0, 1.0, 0.5),
    "long": (1.0, 1.0, 1.0),
}
LONG = "long"
SETTING = "hyper-parameters"
Pattern = dict[tuple[int, int], float]


def runs(setup: Setup) -> tuple[Run, ...]:
    """List the ViT of the scale with the three settings of Fig. 10, and the longest twice as long."""
    scale, seed = setup.scale, setup.seed
    listed = []
    for name, (rate, decay, length) in SETTINGS.items():
        recipe = from_scratch(
            scale, seed=seed, name=name, lr=rate * scale.lr, weight_decay=decay * scale.weight_decay
        )
        listed.append(
            Run(
                study="position-patterns", group=name.replace(",", "").replace(" ", "-"), seed=seed,
                settings={SETTING: name}, model=vit(scale, num_classes=setup.num_classes),
                recipe=lengthened(recipe, length), inspects="positions",
            )
        )  # fmt: skip
    return at_best_rates(setup, listed, reference=LONG)


def pattern_of(result: Result) -> Pattern:
    """Return the similarity of positions by their offset in rows and columns."""
    offsets = (name.split("_") for name in result.measures if name.startswith(SIMILARITY))
    return {
        (int(row), int(column)): result.measures[f"{SIMILARITY}_{row}_{column}"] for _, row, column in offsets
    }


def nearness(pattern: Pattern) -> float:
    """Return how much more similar direct neighbours are than patches at least half the grid apart."""
    half = max(row for row, _ in pattern) / 2
    near = [value for (row, column), value in pattern.items() if row + column == 1]
    far = [value for (row, column), value in pattern.items() if math.hypot(row, column) > half]
    return statistics.fmean(near) - statistics.fmean(far)


def straightness(pattern: Pattern) -> float:
    """Return how much more similar patches of one row or column are than others, compared at equal distances."""
    excess = []
    for side in range(2, max(row for row, _ in pattern) + 1):
        straight = [pattern[0, side], pattern[side, 0]]
        others = [
            value for (row, column), value in pattern.items()
            if row and column and abs(math.hypot(row, column) - side) <= 0.5
        ]  # fmt: skip
        excess += [statistics.fmean(straight) - statistics.fmean(others)] if others else []
    return statistics.fmean(excess)


def difference(one: Pattern, other: Pattern) -> float:
    """Return the root mean square difference of two patterns."""
    return statistics.fmean((one[offset] - other[offset]) ** 2 for offset in one) ** 0.5


def findings(results: Results) -> list[Finding]:
    """Test the pattern in all runs, and compare settings with seeds."""
    patterns = {
        name: [pattern_of(result) for result in results.where(**{SETTING: name})] for name in SETTINGS
    }
    if not all(patterns.values()):
        return []
    every = [pattern for members in patterns.values() for pattern in members]
    compared = [
        mean_above(
            "neighbours have more similar positions than patches far apart", list(map(nearness, every))
        ),
        mean_above(
            "patches of one row or column have more similar positions than others as far apart",
            list(map(straightness, every)),
        ),
    ]
    within = [
        difference(*pair) for members in patterns.values() for pair in itertools.combinations(members, 2)
    ]
    between = [
        difference(first, second)
        for one, other in itertools.combinations(patterns.values(), 2)
        for first, second in itertools.product(one, other)
    ]
    if len(within) > 1:
        spread = (statistics.variance(within) / 2 + statistics.variance(between) / 2) ** 0.5
        excess = statistics.fmean(between) - statistics.fmean(within)
        says = "patterns of different hyper-parameters differ more than those of different seeds"
        compared.append(above(says, excess, error_of(spread, within, between), is_points=False))
    return compared


def mean_above(says: str, values: Sequence[float]) -> Finding:
    """Compare the mean of values with zero."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.inf
    return above(says, statistics.fmean(values), error, is_points=False)


def charts(results: Results) -> list[Chart]:
    """Show similarity over distance, along a row or column and in other directions, for every setting."""
    shown = {"along a row or column": True, "other directions": False}
    drawn = []
    for title, is_straight in shown.items():
        series = {name: curve(results, name, is_straight=is_straight) for name in SETTINGS}
        drawn.append(
            Chart(
                title=f"Ours, {title}", y_label="Cosine similarity of positions", x_label="Distance [patches]",
                series=series,
            )
        )  # fmt: skip
    return drawn


def curve(results: Results, name: str, *, is_straight: bool) -> tuple[Point, ...]:
    """Return the mean similarity of a setting's positions by distance, rounded to whole patches."""
    values: dict[int, list[float]] = {}
    members = results.where(**{SETTING: name})
    for result in members:
        for (row, column), value in pattern_of(result).items():
            if (row == 0 or column == 0) == is_straight:
                values.setdefault(round(math.hypot(row, column)), []).append(value)
    return tuple(
        Point(x=distance, y=statistics.fmean(own), seeds=len(members))
        for distance, own in sorted(values.items())
    )


STUDY = Study(
    name="position-patterns",
    title="Patterns of position embeddings",
    where="section 4.5, Fig. 7; appendix D.4, Fig. 10",
    claim="Close patches learn similar position embeddings, and so do patches of one row or column; the pattern "
    "depends on the hyper-parameters of training.",
    rule="Cosine similarity of learned 1-D positions by offset. (1) Direct neighbours are more similar than patches "
    "further apart than half the grid, and (2) patches of one row or column than others at the same distance, in the "
    "mean of all runs by more than twice the standard error. (3) The root mean square difference of two patterns is "
    "larger between settings of Fig. 10 than between seeds, by more than twice the standard error over pairs.",
    runs=runs,
    findings=findings,
    charts=charts,
    departures="Fig. 10 shows ViT-L/16 after 7 and 14 epochs; here the same factors apply to the scale's ViT and "
    "steps. Pairs share runs, so the error of (3) is an approximation.",
)
