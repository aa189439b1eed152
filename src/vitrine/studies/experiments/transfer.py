"""Models by data sets: pre-trained once, fine-tuned on every target (section 4.2, Table 2, Fig. 2)."""

from pathlib import Path

from vitrine.models.config import ModelConfig
from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import (
    RATES_RULE,
    at_best_fine_rate,
    at_best_rates,
    at_fine_rates,
    open_at_edge,
    search_of,
)
from vitrine.studies.published import I21K_IMAGES, TABLE_2, Beside
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, paper_points, point_of
from vitrine.studies.scales import Scale, fine_tuning, from_scratch, resnet, vit
from vitrine.studies.verdicts import Finding, ahead

LARGE, SMALL, RESNET = "large ViT", "small ViT", "ResNet"
# The rows of Table 2 that correspond to our models.
COUNTERPARTS = {LARGE: "ViT-L/16 (JFT)", RESNET: "BiT-L (R152x4)"}


def models(scale: Scale, num_classes: int) -> dict[str, ModelConfig]:
    """Return the three models."""
    larger = {"width": 2 * scale.width, "depth": 2 * scale.depth}
    if scale.is_paper:
        larger = {"width": 1024, "depth": 24, "num_heads": 16}
    return {
        LARGE: vit(scale, num_classes=num_classes, **larger),
        SMALL: vit(scale, num_classes=num_classes),
        RESNET: resnet(scale, num_classes=num_classes, level=1),
    }


def runs(setup: Setup) -> tuple[Run, ...]:
    """List one pre-training run per model at its best rate, and its fine-tuning on every target at several rates."""
    target, _ = setup.targets[0]
    return at_best_rates(setup, arms(setup), reference=f"small-ViT-{target}-lr1")


def arms(setup: Setup) -> tuple[Run, ...]:
    """List the runs, pre-training at the scale's rate."""
    scale, seed, study = setup.scale, setup.seed, "transfer"
    listed = []
    for name, config in models(scale, setup.num_classes).items():
        label = name.replace(" ", "-")
        first = Run(
            study=study, group=f"{label}-pre-training", seed=seed, settings={"model": name}, model=config,
            recipe=from_scratch(scale, seed=seed, name=f"{name}, pre-training"), role="preparation",
            needs_rate=name,
        )  # fmt: skip
        listed.append(first)
        listed += [
            run
            for target, num_classes in setup.targets
            for run in at_fine_rates(Run(
                study=study, group=f"{label}-{target}", seed=seed, settings={"model": name, "target": target},
                model=models(scale, num_classes)[name], after=first.name, data=target, probes=True,
                recipe=fine_tuning(scale, seed=seed, name=f"{name} on {target}"), needs_rate=name,
            ))
        ]  # fmt: skip
    return tuple(listed)


def findings(results: Results) -> list[Finding]:
    """Compare the large ViT with the ResNet, over all targets and on each."""
    best = {name: at_best_rates_on_targets(results, name) for name in (LARGE, RESNET, SMALL)}
    large, net, small = (values for values, _ in best.values())
    if not (large and net and small):
        return []
    spread = results.spread()
    compared = ahead("over all targets the large ViT is ahead of the ResNet", large, net, spread=spread)
    compared += ahead("over all targets the large ViT is ahead of the small one", large, small, spread=spread)
    return open_at_edge(compared, results, is_narrow=any(at_edge for _, at_edge in best.values()))


def at_best_rates_on_targets(results: Results, model: str) -> tuple[list[float], bool]:
    """Return a model's accuracies at the best rate for every target, and whether one is at its grid's edge."""
    best = [at_best_fine_rate(results, model=model, target=target) for target in results.options("target")]
    return [value for values, _ in best for value in values], any(at_edge for _, at_edge in best)


def charts(results: Results) -> list[Chart]:
    """Show every model on every target, with Table 2."""
    targets = sorted(results.options("target"))
    names = {
        target: next((result.data for result in results.where(target=target)), target) for target in targets
    }
    ours: dict[str, tuple[Point, ...]] = {}
    for model in (LARGE, SMALL, RESNET):
        best = {target: at_best_fine_rate(results, model=model, target=target)[0] for target in targets}
        ours[model] = tuple(point_of(names[target], values) for target, values in best.items() if values)
    return [
        Chart(title="Ours, fine-tuned accuracy", y_label="Accuracy [%]", series=ours),
        Chart(
            title="The paper, Table 2", y_label="Accuracy [%]", is_paper=True,
            series={name: paper_points(row) for name, row in TABLE_2.items()},
        ),
    ]  # fmt: skip


def published(results: Results) -> list[Beside]:
    """Return Table 2 beside our models, for targets that bear the name of one of its data sets."""
    rows = []
    for model, name in COUNTERPARTS.items():
        for data, accuracy in TABLE_2[name].items():
            for target in results.options("target"):
                members = results.where(model=model, target=target)
                if (
                    members
                    and data.replace("-", "").lower() == Path(members[0].data).name.replace("-", "").lower()
                ):
                    ours = at_best_fine_rate(results, model=model, target=target)[0]
                    rows.append(Beside(label=f"{data}: {model} ({name})", paper=accuracy, ours=ours))
    return rows


STUDY = Study(
    name="transfer",
    title="Transfer to several data sets",
    where="section 4.2, Table 2, Fig. 2",
    claim="Pre-trained on enough data, the larger ViT is ahead of the smaller one and of the ResNet on all "
    "data sets, at a fraction of the ResNet's pre-training cost.",
    rule="Test accuracy after fine-tuning, mean over the targets: the large ViT is ahead (1) of the ResNet "
    "and (2) of the small ViT, each by more than twice the standard error; fine-tuned at the best of three rates on "
    "held-out images. " + RATES_RULE,
    runs=runs,
    search=search_of(arms),
    widens=True,
    findings=findings,
    charts=charts,
    published=published,
    published_as="Table 2, pre-trained on JFT-300M",
    least_images=I21K_IMAGES,
)
