"""How far a ViT and a hybrid attend, by layer and head (section 4.5, Fig. 7, right; appendix D.7, Fig. 11)."""

import math
import statistics

from vitrine.models.config import ModelConfig
from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import RATES_RULE, at_best_rates, open_at_edge, search_of
from vitrine.studies.inside import DISTANCE
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Result, Results, pooled_deviation
from vitrine.studies.scales import Scale, from_scratch, hybrid, vit
from vitrine.studies.verdicts import Finding, above, error_of

VIT, HYBRID = "ViT", "hybrid"


def models(scale: Scale, num_classes: int) -> dict[str, ModelConfig]:
    """Return a ViT and a hybrid with the same grid and the same transformer."""
    return {VIT: vit(scale, num_classes=num_classes), HYBRID: hybrid(scale, num_classes=num_classes)}


def runs(setup: Setup) -> tuple[Run, ...]:
    """List both models at their best rates, and the ViT twice as long."""
    return at_best_rates(setup, arms(setup), reference=VIT)


def arms(setup: Setup) -> tuple[Run, ...]:
    """List both models at the scale's rate."""
    return tuple(
        Run(
            study="attention-distance", group=name, seed=setup.seed, settings={"model": name}, model=config,
            recipe=from_scratch(setup.scale, seed=setup.seed, name=name), needs_rate=name, inspects="attention",
        )
        for name, config in models(setup.scale, setup.num_classes).items()
    )  # fmt: skip


def distances_of(result: Result) -> list[list[float]]:
    """Return the distance of every head in pixels, by layer."""
    layers: dict[int, list[float]] = {}
    for name, value in result.measures.items():
        if name.startswith(f"{DISTANCE}_"):
            layers.setdefault(int(name.split("_")[1]), []).append(value)
    return [layers[layer] for layer in sorted(layers)]


def findings(results: Results) -> list[Finding]:
    """Compare late with early layers of the ViT, and the most local early heads of both models."""
    distances = {
        name: [distances_of(result) for result in results.where(model=name)] for name in (VIT, HYBRID)
    }
    if not all(distances.values()):
        return []
    growth = []
    for layers in distances[VIT]:
        half = len(layers) // 2
        early, late = (
            statistics.fmean(map(statistics.fmean, part)) for part in (layers[:half], layers[half:])
        )
        growth.append(late - early)
    error = error_of(spread_of([growth]), growth)
    says = "the ViT's attention distance grows with depth (late minus early layers, pixels)"
    compared = [above(says, statistics.fmean(growth), error, is_points=False)]
    local = {name: [most_local(layers) for layers in members] for name, members in distances.items()}
    gap = statistics.fmean(local[HYBRID]) - statistics.fmean(local[VIT])
    error = error_of(spread_of(list(local.values())), *local.values())
    says = "the most local early head of the hybrid is less local than the ViT's (pixels)"
    compared.append(above(says, gap, error, is_points=False))
    return open_at_edge(compared, results)


def most_local(layers: list[list[float]]) -> float:
    """Return the smallest distance of a head in the first half of the layers."""
    return min(min(heads) for heads in layers[: max(len(layers) // 2, 1)])


def spread_of(groups: list[list[float]]) -> float:
    """Return the standard deviation of one run, pooled over groups; infinite with one seed each."""
    pooled = pooled_deviation(groups)
    return math.inf if pooled is None else pooled


def charts(results: Results) -> list[Chart]:
    """Show the mean distance by layer, and that of the most local and the most global head."""
    drawn = []
    for title, summary in (
        ("mean of heads", statistics.fmean),
        ("most local head", min),
        ("most global head", max),
    ):
        series = {}
        for name in (VIT, HYBRID):
            members = [distances_of(result) for result in results.where(model=name)]
            series[name] = tuple(
                Point(
                    x=number + 1, y=statistics.fmean(summary(heads) for heads in layers), seeds=len(members)
                )
                for number, layers in enumerate(zip(*members, strict=True))
            )
        drawn.append(
            Chart(
                title=f"Ours, {title}", y_label="Attention distance [pixels]", x_label="Layer", series=series
            )
        )
    return drawn


STUDY = Study(
    name="attention-distance",
    title="How far attention reaches",
    where="section 4.5, Fig. 7; appendix D.7, Fig. 11",
    claim="Attention distance grows with depth. In a ViT some heads of the lowest layers attend locally; behind a "
    "ResNet this is less pronounced, so it may serve as early convolutions do.",
    rule="Mean distance in pixels between query and key, weighted by attention, over 128 test images. (1) In the ViT "
    "the second half of the layers attends further than the first. (2) The smallest distance of a head in the first "
    "half of the layers is larger in the hybrid than in the ViT. Both by more than twice the standard error. "
    + RATES_RULE,
    runs=runs,
    search=search_of(arms),
    widens=True,
    findings=findings,
    charts=charts,
    departures="The class token is left out and the rest renormalised.",
)
