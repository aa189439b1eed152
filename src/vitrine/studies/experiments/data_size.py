"""Pre-training on growing sets, regularisation tuned, then fine-tuned (section 4.3, Fig. 3, Table 5)."""

import statistics
from typing import Any

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
from vitrine.studies.published import I21K_IMAGES, TABLE_5, Beside
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, best_option, point_of
from vitrine.studies.scales import Scale, fine_tuning, from_scratch, resnet, vit
from vitrine.studies.verdicts import Finding, above, ahead, error_of

SHARES = (0.05, 0.2, 1.0)
SMALL, LARGE, RESNET = "small ViT", "large ViT", "ResNet"
MODELS = (SMALL, LARGE, RESNET)
# The paper tunes weight decay, dropout and label smoothing; here all three are either weak or strong.
REGULARISATION = {"little": (1.0, 0.0, 0.0), "much": (4.0, 0.1, 0.1)}
# The rows of Table 5 that correspond to our ViTs; its pre-training sets, smallest first, to our shares.
COUNTERPARTS = {SMALL: "ViT-B/16", LARGE: "ViT-L/16"}


def model_of(name: str, scale: Scale, num_classes: int, *, dropout: float) -> ModelConfig:
    """Return one of the three models; a ResNet has no dropout."""
    if name == RESNET:
        return resnet(scale, num_classes=num_classes)
    larger = {"width": 2 * scale.width, "depth": 2 * scale.depth} if name == LARGE else {}
    if scale.is_paper and name == LARGE:  # ViT-L/16
        larger = {"width": 1024, "depth": 24, "num_heads": 16}
    return vit(scale, num_classes=num_classes, dropout=dropout, **larger)


def runs(setup: Setup) -> tuple[Run, ...]:
    """List pre-training and fine-tuning of every model on every subset with little and much regularisation.

    Each model is pre-trained at the rate that is best for it on all images.
    """
    return at_best_rates(setup, arms(setup), reference="small-ViT-1-little-lr1")


def arms(setup: Setup) -> tuple[Run, ...]:
    """List the runs, pre-training at the scale's rate."""
    scale, seed, study = setup.scale, setup.seed, "data-size"
    target, num_classes = setup.targets[0]
    listed = []
    for name in MODELS:
        for share in SHARES:
            for amount, (decay, dropout, smoothing) in REGULARISATION.items():
                settings = {"model": name, "share": share, "regularisation": amount}
                group = f"{name.replace(' ', '-')}-{share:g}-{amount}"
                first = Run(
                    study=study, group=f"{group}-pre-training", seed=seed, settings=settings,
                    model=model_of(name, scale, setup.num_classes, dropout=dropout), role="preparation",
                    recipe=from_scratch(
                        scale, seed=seed, name=f"{group}, pre-training", label_smoothing=smoothing,
                        weight_decay=scale.weight_decay * decay,
                    ),
                    num_images=None if share == 1 else max(round(share * setup.num_images), setup.num_classes),
                    needs_rate=name,
                )  # fmt: skip
                listed += [
                    first,
                    *at_fine_rates(Run(
                        study=study, group=group, seed=seed, settings=settings, after=first.name, data=target,
                        model=model_of(name, scale, num_classes, dropout=0.0),
                        recipe=fine_tuning(scale, seed=seed, name=f"{group}, fine-tuning"),
                        num_images=first.num_images if target == "data" else None, needs_rate=name,
                    )),
                ]  # fmt: skip
    return tuple(listed)


def tuned(results: Results, model: str, share: float) -> tuple[list[float], bool]:
    """Return the accuracies with the better regularisation at its best rate, and whether that is at its grid's edge.

    Both are chosen by the mean on held-out images.
    """
    options = []
    for amount in REGULARISATION:
        fixed: dict[str, Any] = {"model": model, "share": share, "regularisation": amount}
        rate = best_option(results, "lr", **fixed)
        held_out = results.values("held_out", **fixed, **({} if rate is None else {"lr": rate}))
        if held_out:
            options.append((statistics.fmean(held_out), at_best_fine_rate(results, **fixed)))
    return max(options)[1] if options else ([], True)


def findings(results: Results) -> list[Finding]:
    """Compare large and small ViT, and ResNet and ViT, on the smallest set and on all of it."""
    least, most = min(SHARES), max(SHARES)
    best = {name: [tuned(results, name, share) for share in (least, most)] for name in MODELS}
    small, large, net = ([values for values, _ in best[name]] for name in MODELS)
    if not all((*small, *large, *net)):
        return []
    spread = results.spread()
    compared = ahead(
        "the ResNet is ahead of the small ViT on the smallest set", net[0], small[0], spread=spread
    )

    def gap(one: list[list[float]], other: list[list[float]], at: int) -> float:
        return statistics.fmean(one[at]) - statistics.fmean(other[at])

    compared += [
        above(
            "the ViT catches up with the ResNet", gap(net, small, 0) - gap(net, small, 1),
            error_of(spread, *net, *small),
        ),
        above(
            "the large ViT gains on the small one", gap(large, small, 1) - gap(large, small, 0),
            error_of(spread, *large, *small),
        ),
    ]  # fmt: skip
    return open_at_edge(
        compared, results, is_narrow=any(at_edge for one in best.values() for _, at_edge in one)
    )


def charts(results: Results) -> list[Chart]:
    """Show fine-tuned accuracy by the size of the pre-training set, with Table 5."""
    ours = {}
    for name in MODELS:
        points: list[Point] = []
        for share in SHARES:
            values, _ = tuned(results, name, share)
            points += [point_of(share, values)] if values else []
        ours[name] = tuple(points)
    paper = {name: tuple(Point(x=x, y=y) for x, y in row.items()) for name, row in TABLE_5.items()}
    return [
        Chart(
            title="Ours, fine-tuned accuracy", y_label="Accuracy [%]", is_log=True, series=ours,
            x_label="Share of the images in pre-training",
        ),
        Chart(
            title="The paper, fine-tuned on ImageNet", y_label="Accuracy [%]", is_log=True, is_paper=True,
            x_label="Images in pre-training", series=paper,
        ),
    ]  # fmt: skip


def published(results: Results) -> list[Beside]:
    """Return Table 5 beside our ViTs."""
    return [
        Beside(
            label=f"{model} ({name}), {share:g} of the images ({images:,.0f})", paper=accuracy,
            ours=tuned(results, model, share)[0],
        )
        for model, name in COUNTERPARTS.items()
        for share, (images, accuracy) in zip(SHARES, TABLE_5[name].items(), strict=True)
    ]  # fmt: skip


STUDY = Study(
    name="data-size",
    title="How much pre-training data a ViT needs",
    where="section 4.3, Fig. 3, Table 5",
    claim="On the smallest set, large ViTs are worse than small ones despite regularisation, and ResNets are "
    "better than both; on the largest set the order is reversed.",
    rule="Test accuracy after fine-tuning, with the regularisation that is better on held-out images. (1) On"
    " the smallest set the ResNet is ahead of the small ViT by more than twice the standard error. (2) "
    "Its lead shrinks from the smallest set to all images, and (3) the large ViT gains on the small "
    "one, each by more than twice the standard error. Fine-tuned at the best of three rates. " + RATES_RULE,
    runs=runs,
    search=search_of(arms),
    widens=True,
    findings=findings,
    charts=charts,
    published=published,
    published_as="Table 5, fine-tuned on ImageNet",
    least_images=I21K_IMAGES,
    departures="Fine-tuned on the same subset if there is no target set.",
)
