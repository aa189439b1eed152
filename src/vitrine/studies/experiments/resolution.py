"""Fine-tuning at a higher resolution, with resampled positions and without (section 3.2)."""

from vitrine.reports.charts import Chart
from vitrine.studies.arms import (
    RATES_RULE,
    at_best_fine_rate,
    at_best_rates,
    at_fine_rates,
    open_at_edge,
    search_of,
)
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, point_of
from vitrine.studies.scales import Scale, fine_tuning, from_scratch, vit
from vitrine.studies.verdicts import Finding, ahead

SAME, RESAMPLED, FRESH = "same size", "larger, resampled", "larger, fresh positions"


def larger(scale: Scale) -> int:
    """Return the higher resolution: 1.5 times as many patches per side; 384 at scale `paper`."""
    return 384 if scale.is_paper else scale.image_size * 3 // 2


def runs(setup: Setup) -> tuple[Run, ...]:
    """List one pre-training run at its best rate, and three ways to fine-tune it at several rates."""
    return at_best_rates(setup, arms(setup), reference="same-size-lr1")


def arms(setup: Setup) -> tuple[Run, ...]:
    """List the runs, pre-training at the scale's rate."""
    scale, seed, study = setup.scale, setup.seed, "resolution"
    target, num_classes = setup.targets[0]
    before = Run(
        study=study, group="pre-training", seed=seed, settings={},
        model=vit(scale, num_classes=setup.num_classes),
        recipe=from_scratch(scale, seed=seed, name="pre-training"), role="preparation",
        needs_rate="ViT",
    )  # fmt: skip

    def after(name: str, size: int, *, keeps_positions: bool) -> list[Run]:
        tuned = Run(
            study=study, group=name.replace(",", "").replace(" ", "-"), seed=seed, settings={"way": name},
            model=vit(scale, num_classes=num_classes, size=size), after=before.name, data=target,
            recipe=fine_tuning(scale, seed=seed, name=name, size=size), keeps_positions=keeps_positions,
            needs_rate=before.needs_rate,
        )  # fmt: skip
        return at_fine_rates(tuned)

    return (
        before,
        *after(SAME, scale.image_size, keeps_positions=True),
        *after(RESAMPLED, larger(scale), keeps_positions=True),
        *after(FRESH, larger(scale), keeps_positions=False),
    )


def findings(results: Results) -> list[Finding]:
    """Compare resampled positions with fresh ones, and the higher resolution with the same."""
    best = [at_best_fine_rate(results, way=way) for way in (SAME, RESAMPLED, FRESH)]
    same, resampled, fresh = (values for values, _ in best)
    if not (same and resampled and fresh):
        return []
    spread = results.spread()
    compared = ahead("resampled positions are better than fresh ones", resampled, fresh, spread=spread)
    compared += ahead("the higher resolution is better than the same", resampled, same, spread=spread)
    return open_at_edge(compared, results, is_narrow=any(at_edge for _, at_edge in best))


def charts(results: Results) -> list[Chart]:
    """Show the three ways to fine-tune."""
    best = {way: at_best_fine_rate(results, way=way)[0] for way in (SAME, RESAMPLED, FRESH)}
    ways = tuple(point_of(way, values) for way, values in best.items() if values)
    return [Chart(title="Ours, after fine-tuning", y_label="Accuracy [%]", series={"accuracy": ways})]


STUDY = Study(
    name="resolution",
    title="Fine-tuning at a higher resolution",
    where="section 3.2",
    claim="Fine-tuning at a higher resolution than pre-training helps; pre-trained position embeddings are "
    "not meaningful there and are resampled in 2-D by their place in the image.",
    rule="Test accuracy after fine-tuning at the best of three rates on held-out images. (1) "
    "With resampled positions it is above that with new "
    "positions by more than twice the standard error. (2) It is above fine-tuning at the same "
    "resolution by more than twice the standard error. " + RATES_RULE,
    runs=runs,
    search=search_of(arms),
    widens=True,
    findings=findings,
    charts=charts,
    departures="Images that are small on disk are enlarged: a higher resolution adds tokens but no detail.",
)
