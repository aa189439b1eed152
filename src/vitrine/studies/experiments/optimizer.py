"""Adam against SGD for pre-training ResNets (appendix D.1, Table 7)."""

from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import at_best_rates
from vitrine.studies.published import TABLE_7, Beside
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, best_option, is_at_edge, paper_points, points_by
from vitrine.studies.scales import fine_tuning, from_scratch, resnet
from vitrine.studies.verdicts import EDGE, Finding, ahead, left_open

ADAM, SGD = "Adam", "SGD"
# Candidates; BiT's rate for SGD is 0.03 for 256 images.
RATES = {ADAM: (1e-4, 3e-4, 1e-3, 3e-3), SGD: (0.01, 0.03, 0.1, 0.3)}
LEVELS = {"smaller ResNet": 0, "larger ResNet": 1}
# The rows of Table 7 that correspond to our ResNets.
COUNTERPARTS = {"smaller ResNet": "R50", "larger ResNet": "R152x2"}


def runs(setup: Setup) -> tuple[Run, ...]:
    """List both ResNets with both optimizers at four learning rates each, and their fine-tuning."""
    scale, seed, study = setup.scale, setup.seed, "optimizer"
    target, num_classes = setup.targets[0]
    listed = []
    for model, number in LEVELS.items():
        for optimizer, rates in RATES.items():
            for rate in rates:
                group = f"{model.replace(' ', '-')}-{optimizer}-{rate:g}"
                settings = {"model": model, "optimizer": optimizer, "lr": rate}
                options = {"optimizer": "adamw" if optimizer == ADAM else "sgd", "lr": rate}
                if (
                    optimizer == SGD
                ):  # BiT adds its decay of 1e-4 to the gradient; decoupled, it is multiplied by the rate
                    options["weight_decay"] = 1e-4
                first = Run(
                    study=study, group=f"{group}-pre-training", seed=seed, settings=settings,
                    model=resnet(scale, num_classes=setup.num_classes, level=number), role="preparation",
                    recipe=from_scratch(scale, seed=seed, name=f"{group}, pre-training", **options),
                )  # fmt: skip
                listed += [
                    first,
                    Run(
                        study=study, group=group, seed=seed, settings=settings, after=first.name, data=target,
                        model=resnet(scale, num_classes=num_classes, level=number),
                        recipe=fine_tuning(scale, seed=seed, name=f"{group}, fine-tuning"),
                    ),
                ]  # fmt: skip
    return at_best_rates(setup, listed, reference=f"smaller-ResNet-{ADAM}-{RATES[ADAM][2]:g}")


def best(results: Results, model: str, optimizer: str) -> tuple[float, list[float]] | None:
    """Return the learning rate that is best on held-out images and its test accuracies."""
    rate = best_option(results, "lr", model=model, optimizer=optimizer)
    return None if rate is None else (rate, results.values(model=model, optimizer=optimizer, lr=rate))


def findings(results: Results) -> list[Finding]:
    """Compare the optimizers for each ResNet."""
    spread, compared = results.spread(), []
    for model in LEVELS:
        adam, sgd = best(results, model, ADAM), best(results, model, SGD)
        if adam is None or sgd is None:
            return []
        one = ahead(f"{model}: Adam is ahead of SGD", adam[1], sgd[1], spread=spread)
        chosen = {ADAM: adam[0], SGD: sgd[0]}
        is_narrow = any(
            is_at_edge(results, "lr", rate, model=model, optimizer=optimizer)
            for optimizer, rate in chosen.items()
        )
        compared += [left_open(finding, EDGE) for finding in one] if is_narrow else one
    return compared


def charts(results: Results) -> list[Chart]:
    """Show both optimizers at their best rates, with Table 7."""
    points: list[Point] = []
    for model in LEVELS:
        for optimizer in RATES:
            chosen = best(results, model, optimizer)
            if chosen:
                label = f"{model}, {optimizer}"
                points += [
                    Point(x=label, y=one.y, spread=one.spread, seeds=one.seeds)
                    for one in points_by(results, "lr", [chosen[0]], model=model, optimizer=optimizer)
                ]
    return [
        Chart(title="Ours, fine-tuned accuracy", y_label="Accuracy [%]", series={"accuracy": tuple(points)}),
        Chart(
            title="The paper, mean over data sets", y_label="Accuracy [%]", is_paper=True,
            series={"Table 7": paper_points(TABLE_7)},
        ),
    ]  # fmt: skip


def published(results: Results) -> list[Beside]:
    """Return Table 7 beside our ResNets."""
    rows = []
    for model, name in COUNTERPARTS.items():
        for optimizer in (SGD, ADAM):
            chosen = best(results, model, optimizer)
            label, paper = f"{model} ({name}), {optimizer}", TABLE_7[f"{name}, {optimizer}"]
            rows.append(Beside(label=label, paper=paper, ours=chosen[1] if chosen else ()))
    return rows


STUDY = Study(
    name="optimizer",
    title="Adam or SGD for ResNets",
    where="appendix D.1, Table 7",
    claim="ResNets pre-trained with Adam transfer slightly better than with SGD, so a comparison with Adam is"
    " fair to them.",
    rule="Test accuracy after fine-tuning, each optimizer at its best learning rate on held-out images: for "
    "both ResNets, Adam is ahead by more than twice the standard error; open if a best rate is at the edge of "
    "its grid.",
    runs=runs,
    findings=findings,
    charts=charts,
    published=published,
    published_as="Table 7, pre-trained on JFT-300M, mean of fine-tuned accuracies on five data sets",
)
