"""Linear 5-shot accuracy after pre-training on random subsets: ViT against ResNet (section 4.3, Fig. 4)."""

import statistics

from vitrine.models.config import ModelConfig
from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import RATES_RULE, at_best_rates, open_at_edge, search_of
from vitrine.studies.published import JFT_IMAGES
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, point_at
from vitrine.studies.scales import Scale, from_scratch, resnet, vit
from vitrine.studies.verdicts import Finding, above, ahead, error_of

# Shares of the set; the paper's subsets are 9, 30, 90 and all 303 million images of JFT.
SHARES = (0.03, 0.1, 0.3, 1.0)
EVALUATIONS, PATIENCE = 8, 3
VIT, HALF, RESNET = "ViT", "ViT-b", "ResNet"


def models(scale: Scale, num_classes: int) -> dict[str, ModelConfig]:
    """Return a ViT, the same with all hidden dimensions halved (the paper's ViT-b), and a ResNet."""
    return {
        VIT: vit(scale, num_classes=num_classes),
        HALF: vit(scale, num_classes=num_classes, width=scale.width // 2),
        RESNET: resnet(scale, num_classes=num_classes),
    }


def runs(setup: Setup) -> tuple[Run, ...]:
    """List every model on every subset, each model at the rate that is best for it on all images."""
    return at_best_rates(setup, arms(setup), reference=f"{VIT}-{SHARES[-1]:g}")


def arms(setup: Setup) -> tuple[Run, ...]:
    """List the runs at the scale's rate: the same hyper-parameters on all subsets, early stopping."""
    scale, seed = setup.scale, setup.seed
    training = {"evaluate_every": max(scale.steps // EVALUATIONS, 1), "patience": PATIENCE}
    return tuple(
        Run(
            study="few-shot-vs-data", group=f"{name}-{share:g}", seed=seed,
            settings={"model": name, "share": share}, model=config, probes=True, needs_rate=name,
            recipe=from_scratch(scale, seed=seed, name=f"{name} on {share:g} of the data", **training),
            num_images=None if share == 1 else max(round(share * setup.num_images), setup.num_classes),
        )
        for name, config in models(scale, setup.num_classes).items()
        for share in SHARES
    )  # fmt: skip


def findings(results: Results) -> list[Finding]:
    """Compare both on the smallest subset, the change of the gap up to all images, and both on all images."""
    least, most = min(SHARES), max(SHARES)
    small = [results.values(model=name, share=least) for name in (RESNET, VIT)]
    large = [results.values(model=name, share=most) for name in (RESNET, VIT)]
    if not all((*small, *large)):
        return []
    spread = results.spread()
    compared = ahead("the ResNet is ahead on the smallest subset", *small, spread=spread)
    gaps = [statistics.fmean(one) - statistics.fmean(other) for one, other in (small, large)]
    error = error_of(spread, *small, *large)
    compared.append(above("the ViT catches up as the data grows", gaps[0] - gaps[1], error))
    compared += ahead("the ViT is ahead on all images", *reversed(large), spread=spread)
    halves = [results.values(model=HALF, share=share) for share in (least, most)]
    if all(halves):
        gains = [
            statistics.fmean(half) - statistics.fmean(vit)
            for half, vit in zip(halves, (small[1], large[1]), strict=True)
        ]
        error = error_of(spread, *halves, small[1], large[1])
        says = "ViT-b is better, relative to the ViT, on the smallest subset than on all images"
        compared.append(above(says, gains[0] - gains[1], error))
    return open_at_edge(compared, results)


def charts(results: Results) -> list[Chart]:
    """Show 5-shot and test accuracy by the number of images."""
    return [
        curves(results, "fewshot", "Ours, linear 5-shot"),
        curves(results, "accuracy", "Ours, test accuracy"),
    ]


def curves(results: Results, measure: str, title: str) -> Chart:
    """Return one line per model over the number of training images."""
    series = {}
    for name in (VIT, HALF, RESNET):
        points: list[Point] = []
        for share in SHARES:
            members = results.where(model=name, share=share)
            if members:
                points += point_at(results, members[0].num_images, measure=measure, model=name, share=share)
        series[name] = tuple(points)
    return Chart(title=title, y_label="Accuracy [%]", x_label="Training images", is_log=True, series=series)


STUDY = Study(
    name="few-shot-vs-data",
    title="Few-shot accuracy against the size of the pre-training set",
    where="section 4.3, Fig. 4",
    claim="On small subsets ResNets are ahead and ViTs overfit more; with more data ViTs catch up and "
    "overtake them. ViT-b, with all hidden dimensions halved, overfits less on small subsets and gains less.",
    rule="Linear 5-shot accuracy, fixed hyper-parameters, early stopping. (1) On the smallest subset, the "
    "ResNet is ahead by more than twice the standard error. (2) Its lead is smaller on all images than "
    "on the smallest subset, by more than twice the standard error of that change. (3) On all images, the ViT "
    "is ahead by more than twice the standard error. (4) ViT-b's accuracy minus the ViT's is larger on the smallest "
    "subset than on all images, by more than twice the standard error. " + RATES_RULE,
    runs=runs,
    search=search_of(arms),
    widens=True,
    findings=findings,
    charts=charts,
    least_images=JFT_IMAGES,
    measure="fewshot",
    departures="Few-shot accuracy is measured on the target set if there is one, otherwise on the training "
    "classes.",
)
