"""Positions: none, 1-D, 2-D and relative, at the stem, in every layer and shared (appendix D.4, Table 8)."""

import statistics

from vitrine.reports.charts import Chart
from vitrine.studies.arms import RATES_RULE, at_best_rates, open_at_edge, search_of
from vitrine.studies.published import TABLE_8, Beside
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, paper_points, points_by
from vitrine.studies.scales import from_scratch, vit
from vitrine.studies.verdicts import SURE, Finding, State, ahead, error_of

# The names in Table 8: kind and placement.
KINDS: dict[str, tuple[str, str]] = {
    "none": ("none", "stem"),
    "1-D stem": ("learned_1d", "stem"),
    "1-D every layer": ("learned_1d", "every_layer"),
    "1-D shared": ("learned_1d", "shared"),
    "2-D stem": ("learned_2d", "stem"),
    "2-D every layer": ("learned_2d", "every_layer"),
    "2-D shared": ("learned_2d", "shared"),
    "relative": ("relative", "every_layer"),
}


def runs(setup: Setup) -> tuple[Run, ...]:
    """List one run for each kind of positions at its best rate, all else equal."""
    return at_best_rates(setup, arms(setup), reference="1-D-stem")


def arms(setup: Setup) -> tuple[Run, ...]:
    """List the kinds at the scale's rate."""
    scale, seed = setup.scale, setup.seed
    return tuple(
        Run(
            study="positions", group=name.replace(" ", "-"), seed=seed, settings={"positions": name},
            model=vit(scale, num_classes=setup.num_classes, positions=kind, position_placement=placement),
            recipe=from_scratch(scale, seed=seed, name=f"positions {name}"), probes=True, needs_rate=name,
        )
        for name, (kind, placement) in KINDS.items()
    )  # fmt: skip


def findings(results: Results) -> list[Finding]:
    """Compare no positions with all others, and the others with each other."""
    means = {name: results.values(positions=name) for name in KINDS}
    if not all(means.values()):
        return []
    spread = results.spread()
    others = [value for name, values in means.items() if name != "none" for value in values]
    gap = statistics.fmean(others) - statistics.fmean(means["none"])
    compared = ahead("position embeddings are better than none", others, means["none"], spread=spread)
    with_some = {name: statistics.fmean(values) for name, values in means.items() if name != "none"}
    best, worst = max(with_some, key=with_some.__getitem__), min(with_some, key=with_some.__getitem__)
    width = with_some[best] - with_some[worst]
    error = error_of(spread, means[best], means[worst])
    is_narrow = width <= max(gap / 2, SURE * error)
    # Without a gap there is nothing to compare with: the differences are noise.
    state: State = "holds" if is_narrow and compared[0].state == "holds" else "open"
    if not is_narrow and width > max(gap, 2 * SURE * error):
        state = "opposite"
    says = f"all kinds are within half of that gap (best {best}, worst {worst})"
    compared.append(Finding(says=says, difference=width, error=error, state=state))
    return open_at_edge(compared, results)


def charts(results: Results) -> list[Chart]:
    """Show accuracy and 5-shot accuracy of every kind, with Table 8."""
    return [
        Chart(
            title="Ours, test accuracy", y_label="Accuracy [%]",
            series={"accuracy": points_by(results, "positions", list(KINDS), measure="accuracy")},
        ),
        Chart(
            title="Ours, linear 5-shot", y_label="Accuracy [%]",
            series={"5-shot": points_by(results, "positions", list(KINDS), measure="fewshot")},
        ),
        Chart(
            title="The paper, ViT-B/16, ImageNet 5-shot", y_label="Accuracy [%]", is_paper=True,
            series={"Table 8": paper_points(TABLE_8)},
        ),
    ]  # fmt: skip


def published(results: Results) -> list[Beside]:
    """Return Table 8 beside our kinds."""
    return [Beside(label=name, paper=TABLE_8[name], ours=results.values(positions=name)) for name in KINDS]


STUDY = Study(
    name="positions",
    title="Position embeddings",
    where="appendix D.4, Table 8, Fig. 10",
    claim="Without position embeddings a ViT is clearly worse; 1-D, 2-D and relative ones differ little, "
    "wherever they are added.",
    rule="Linear 5-shot accuracy, as in Table 8. (1) The mean of all kinds is above that of no positions by more "
    "than twice its standard error. (2) There is such a gap, and the best and the worst kind differ by at most half "
    "of it, or by at most twice the standard error of their difference; opposite if they differ by more "
    "than the gap and four standard errors. " + RATES_RULE,
    runs=runs,
    search=search_of(arms),
    widens=True,
    findings=findings,
    charts=charts,
    published=published,
    published_as="Table 8, ViT-B/16, linear 5-shot accuracy on ImageNet",
    measure="fewshot",
)
