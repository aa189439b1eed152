"""Fine-tuning at a higher resolution, with resampled positions and without (section 3.2)."""

from vitrine.reports.charts import Chart
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, points_by
from vitrine.studies.scales import Scale, fine_tuning, from_scratch, vit
from vitrine.studies.verdicts import Finding, ahead

SAME, RESAMPLED, FRESH = "same size", "larger, resampled", "larger, fresh positions"


def larger(scale: Scale) -> int:
    """Return the higher resolution: 1.5 times as many patches per side; 384 at scale `paper`."""
    return 384 if scale.is_paper else scale.image_size * 3 // 2


def runs(setup: Setup) -> tuple[Run, ...]:
    """List one pre-training run and three ways to fine-tune it."""
    scale, seed, study = setup.scale, setup.seed, "resolution"
    target, num_classes = setup.targets[0]
    before = Run(
        study=study, group="pre-training", seed=seed, settings={},
        model=vit(scale, num_classes=setup.num_classes),
        recipe=from_scratch(scale, seed=seed, name="pre-training"), role="preparation",
    )  # fmt: skip

    def after(name: str, size: int, *, keeps_positions: bool) -> Run:
        return Run(
            study=study, group=name.replace(",", "").replace(" ", "-"), seed=seed, settings={"way": name},
            model=vit(scale, num_classes=num_classes, size=size), after=before.name, data=target,
            recipe=fine_tuning(scale, seed=seed, name=name, size=size), keeps_positions=keeps_positions,
        )  # fmt: skip

    return (
        before,
        after(SAME, scale.image_size, keeps_positions=True),
        after(RESAMPLED, larger(scale), keeps_positions=True),
        after(FRESH, larger(scale), keeps_positions=False),
    )


def findings(results: Results) -> list[Finding]:
    """Compare resampled positions with fresh ones, and the higher resolution with the same."""
    same, resampled, fresh = (results.values(way=way) for way in (SAME, RESAMPLED, FRESH))
    if not (same and resampled and fresh):
        return []
    spread = results.spread()
    compared = ahead("resampled positions are better than fresh ones", resampled, fresh, spread=spread)
    return compared + ahead("the higher resolution is better than the same", resampled, same, spread=spread)


def charts(results: Results) -> list[Chart]:
    """Show the three ways to fine-tune."""
    ways = points_by(results, "way", [SAME, RESAMPLED, FRESH])
    return [Chart(title="Ours, after fine-tuning", y_label="Accuracy [%]", series={"accuracy": ways})]


STUDY = Study(
    name="resolution",
    title="Fine-tuning at a higher resolution",
    where="section 3.2",
    claim="Fine-tuning at a higher resolution than pre-training helps; pre-trained position embeddings are "
    "not meaningful there and are resampled in 2-D by their place in the image.",
    rule="Test accuracy after the same fine-tuning. (1) With resampled positions it is above that with new "
    "positions by more than twice the standard error. (2) It is above fine-tuning at the same "
    "resolution by more than twice the standard error.",
    runs=runs,
    findings=findings,
    charts=charts,
    departures="Images that are small on disk are enlarged: a higher resolution adds tokens but no detail.",
)
