"""The head: class token against average pooling, each with its own learning rates (appendix D.3, Fig. 9)."""

import statistics

from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import at_best_rates
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, best_option, is_at_edge, point_at
from vitrine.studies.scales import from_scratch, vit
from vitrine.studies.verdicts import EDGE, Finding, above, error_of, left_open, level

POOLINGS = {"class token": "class_token", "average pooling": "average"}
# Factors on the scale's learning rate; Fig. 9 goes from 8e-4 to 3e-4.
FACTORS = (0.1, 0.3, 1.0, 3.0)
WITHIN, MOST = 0.01, 0.03


def runs(setup: Setup) -> tuple[Run, ...]:
    """List every pooling at every learning rate, and the class token at the scale's rate twice as long."""
    scale, seed = setup.scale, setup.seed
    listed = tuple(
        Run(
            study="head", group=f"{option}-lr{factor:g}", seed=seed,
            settings={"pooling": name, "lr": scale.lr * factor},
            model=vit(scale, num_classes=setup.num_classes, pooling=option),
            recipe=from_scratch(scale, seed=seed, name=f"{name}, rate x {factor:g}", lr=scale.lr * factor),
            probes=True,
        )
        for name, option in POOLINGS.items()
        for factor in FACTORS
    )  # fmt: skip
    return at_best_rates(setup, listed, reference=f"{POOLINGS['class token']}-lr1")


def best_rates(results: Results) -> dict[str, float]:
    """Return the learning rate that is best on held-out images for each pooling."""
    rates = {name: best_option(results, "lr", pooling=name) for name in POOLINGS}
    return {name: rate for name, rate in rates.items() if rate is not None}


def findings(results: Results) -> list[Finding]:
    """Compare the poolings at their best rates, and each at the other's rate."""
    rates = best_rates(results)
    if len(rates) < len(POOLINGS):
        return []
    spread = results.spread()
    one, other = (results.values(pooling=name, lr=rates[name]) for name in POOLINGS)
    compared = level(
        "each at its best learning rate, both are equal (class token minus average pooling)", one, other,
        spread=spread, within=WITHIN, most=MOST,
    )  # fmt: skip
    # The accuracy that each loses at the other's best rate; the larger loss counts.
    losses = []
    for name, rate in zip(POOLINGS, reversed(rates.values()), strict=True):
        own, swapped = results.values(pooling=name, lr=rates[name]), results.values(pooling=name, lr=rate)
        if swapped:
            losses.append(statistics.fmean(own) - statistics.fmean(swapped))
    says = "at the other's best learning rate, one of them loses"
    compared.append(above(says, max(losses, default=0.0), error_of(spread, one, other)))
    is_narrow = any(is_at_edge(results, "lr", rate, pooling=name) for name, rate in rates.items())
    return [left_open(one, EDGE) for one in compared] if is_narrow else compared


def charts(results: Results) -> list[Chart]:
    """Show accuracy by learning rate."""
    series = {}
    for name in POOLINGS:
        points: list[Point] = []
        for rate in sorted(results.options("lr")):
            points += point_at(results, rate, pooling=name, lr=rate)
        series[name] = tuple(points)
    return [
        Chart(
            title="Ours, test accuracy", y_label="Accuracy [%]", x_label="Peak learning rate", is_log=True,
            series=series,
        )
    ]  # fmt: skip


STUDY = Study(
    name="head",
    title="Class token or average pooling",
    where="appendix D.3, Fig. 9",
    claim="Both work equally well but need different learning rates; an apparent weakness of average pooling "
    "was due to the learning rate.",
    rule="Test accuracy, learning rates chosen on held-out images; open if one is at the edge of the grid. "
    "(1) Each at its best learning rate, they differ by at most one point or twice the "
    "standard error; opposite if they differ by more than three points and twice the standard error. "
    "(2) One of them loses more than twice the standard error at the other's best rate.",
    runs=runs,
    findings=findings,
    charts=charts,
)
