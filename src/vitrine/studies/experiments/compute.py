"""Accuracy against pre-training compute: ViTs, ResNets, hybrids (section 4.4, Fig. 5, Table 6)."""

import dataclasses
import math
import statistics

import numpy as np

from vitrine.models.config import ModelConfig
from vitrine.models.variants import configure
from vitrine.recipes.pre_training import JFT, jft_like
from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import RATES_RULE, at_best_rates, open_at_edge, search_of
from vitrine.studies.published import JFT_IMAGES, TABLE_6, Beside
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, point_at
from vitrine.studies.scales import Scale, axial, axial_resnet, from_scratch, hybrid, resnet, vit
from vitrine.studies.verdicts import Finding, above, ahead

FAMILIES = ("ViT", "ResNet", "hybrid")
# One model, beside the ViT that it is made from (appendix D.6, Fig. 13).
AXIAL, BASE = "axial ViT", "ViT-1"
# The same of a ResNet, beside ResNet-0.
AXIAL_RESNET = "AxialResNet"
# Three sizes of each family, as factors on width and depth of the scale's base model.
LEVELS = ((0.5, 2 / 3), (1.0, 1.0), (4 / 3, 4 / 3))
# The arm that is also trained twice as long.
REFERENCE = BASE
# The models of Table 6 that correspond to ours: small, larger, largest of each family.
COUNTERPARTS = {
    "ViT": ("B/32", "B/16", "L/16"), "ResNet": ("R50x1", "R101x1", "R50x2"),
    "hybrid": ("R50+B/32", "R50+B/16", "R50+L/16"),
}  # fmt: skip


def family_models(scale: Scale, num_classes: int) -> list[tuple[str, str, ModelConfig]]:
    """Return family, name and config of nine models, of an axial ViT and of an AxialResNet."""
    models: list[tuple[str, str, ModelConfig]] = []
    for number, (wider, deeper) in enumerate(LEVELS):
        width = round(scale.width * wider / scale.num_heads / 4) * 4 * scale.num_heads
        shape = {"width": width, "depth": max(round(scale.depth * deeper), 1)}
        models += [
            ("ViT", f"ViT-{number}", vit(scale, num_classes=num_classes, **shape)),
            ("ResNet", f"ResNet-{number}", resnet(scale, num_classes=num_classes, level=number)),
            ("hybrid", f"hybrid-{number}", hybrid(scale, num_classes=num_classes, **shape)),
        ]
    return [
        *models,
        (AXIAL, "axial-ViT-1", axial(scale, num_classes=num_classes)),
        (AXIAL_RESNET, "axial-ResNet-0", axial_resnet(scale, num_classes=num_classes)),
    ]


def runs(setup: Setup) -> tuple[Run, ...]:
    """List nine models of three families and two axial ones, each at its best rate; at scale `paper`, Table 6."""
    if setup.scale.is_paper:
        return tuple(paper_run(setup, name) for name in JFT)
    return at_best_rates(setup, arms(setup), reference=REFERENCE)


def arms(setup: Setup) -> tuple[Run, ...]:
    """List the models at the scale's rate."""
    scale, seed = setup.scale, setup.seed
    return tuple(
        Run(
            study="compute", group=name, seed=seed, settings={"family": family, "model": name}, model=config,
            recipe=from_scratch(scale, seed=seed, name=name), probes=True, needs_rate=name,
        )
        for family, name, config in family_models(scale, setup.num_classes)
    )  # fmt: skip


def paper_run(setup: Setup, name: str) -> Run:
    """Return one row of Table 6, with the recipe of Table 3."""

    recipe = jft_like(name).with_steps_for(setup.num_images)
    family = "hybrid" if "+" in name else "ResNet" if name.startswith("BiT") else "ViT"
    group = name.replace("/", "-")
    return Run(
        study="compute", group=group, seed=setup.seed, settings={"family": family, "model": group},
        model=configure(name, num_classes=setup.num_classes, **recipe.model_options),
        recipe=dataclasses.replace(
            recipe, training=dataclasses.replace(recipe.training, seed=setup.seed), epochs=None
        ), probes=True,
    )  # fmt: skip


def curve(results: Results, family: str) -> tuple[list[float], list[float], int]:
    """Return log10 of exaFLOPs and mean accuracy of a family's models by cost, and the fewest seeds of any model."""
    points, seeds = [], []
    for model in results.options("model"):
        members = results.where(family=family, model=model)
        if members:
            points.append((math.log10(members[0].exaflops), statistics.fmean(results.values(model=model))))
            seeds.append(len(members))
    points.sort()
    return [x for x, _ in points], [y for _, y in points], min(seeds, default=0)


def lead(results: Results, one: str, other: str, *, at: list[float]) -> float:
    """Return the excess of one family's interpolated accuracy over another's, averaged over `at`."""
    (x1, y1, _), (x2, y2, _) = curve(results, one), curve(results, other)
    return float(np.mean(np.interp(at, x1, y1) - np.interp(at, x2, y2)))


def findings(results: Results) -> list[Finding]:
    """Compare the families at equal compute, in the range that both cover."""
    curves = {family: curve(results, family) for family in FAMILIES}
    if any(len(xs) < 2 for xs, _, _ in curves.values()):
        return []
    seeds = min(count for _, _, count in curves.values())
    error = results.spread() * (2 / seeds) ** 0.5
    low = max(curves["ViT"][0][0], curves["ResNet"][0][0])
    high = min(curves["ViT"][0][-1], curves["ResNet"][0][-1])
    if low >= high:  # no common compute
        return []
    at = list(np.linspace(low, high, 5))
    says = "a ViT is ahead of a ResNet of equal compute"
    compared = [above(says, lead(results, "ViT", "ResNet", at=at), error)]
    low = max(curves["ViT"][0][0], curves["hybrid"][0][0])
    says = "a hybrid is ahead of a ViT at the smallest compute"
    compared.append(above(says, lead(results, "hybrid", "ViT", at=[low]), error))
    lines, plain = results.values(family=AXIAL), results.values(model=BASE)
    compared += ahead(
        "an axial ViT is ahead of the ViT it is made from", lines, plain, spread=results.spread()
    )
    return open_at_edge(compared, results)


def charts(results: Results) -> list[Chart]:
    """Show accuracy over compute, with Table 6."""
    ours = {}
    for family in (*FAMILIES, AXIAL, AXIAL_RESNET):
        points: list[Point] = []
        for model in results.options("model"):
            members = results.where(family=family, model=model)
            if members:
                points += point_at(results, members[0].exaflops, model=model)
        ours[family] = tuple(sorted(points, key=lambda one: one.x))
    paper = {
        family: tuple(Point(x=x, y=y) for x, y in sorted(rows.values())) for family, rows in TABLE_6.items()
    }
    common = {"y_label": "Accuracy [%]", "x_label": "Pre-training compute [exaFLOPs]", "is_log": True}
    return [
        Chart(title="Ours, test accuracy", series=ours, **common),  # type: ignore[arg-type]
        Chart(title="The paper, JFT to ImageNet", series=paper, is_paper=True, **common),  # type: ignore[arg-type]
    ]


def published(results: Results) -> list[Beside]:
    """Return models of Table 6 beside ours."""
    return [
        Beside(
            label=f"{family}-{number}, {name} at {TABLE_6[family][name][0]:g} exaFLOPs",
            paper=TABLE_6[family][name][1], ours=results.values(model=f"{family}-{number}"),
        )
        for family, names in COUNTERPARTS.items()
        for number, name in enumerate(names)
    ]  # fmt: skip


STUDY = Study(
    name="compute",
    title="Accuracy against compute",
    where="section 4.4, Fig. 5, Table 6; appendix D.6, Fig. 13",
    claim="ViTs need two to four times less compute than ResNets for the same accuracy; hybrids are slightly "
    "ahead of ViTs at small compute, and the lead vanishes at large compute. Axial ViTs are better than the ViTs "
    "they are made from, for more compute (appendix D.6).",
    rule="Test accuracy over log compute, linear between models of a family. (1) Over the common range of "
    "compute, ViTs are above ResNets on average by more than twice the standard error. (2) At the "
    "smallest common compute, hybrids are above ViTs by more than twice the standard error. (3) The axial ViT "
    "is above the ViT of as many blocks, each with half its layers, by more than twice the standard error. "
    + RATES_RULE,
    runs=runs,
    search=search_of(arms),
    widens=True,
    findings=findings,
    charts=charts,
    published=published,
    published_as="Table 6, pre-trained on JFT-300M for seven epochs, fine-tuned on ImageNet",
    least_images=JFT_IMAGES,
    departures="Accuracy on the same set instead of after transfer; the claim assumes enough pre-training data, "
    "which small sets do not provide. ResNets and hybrids have a 3x3 root that keeps the size of the image, and "
    "stages of equal width; all three families end with tokens or cells of 4 pixels, the ResNets' last stage with 8. "
    "The AxialResNet, with units and widths of the smallest ResNet, is shown and not part of the rule.",
)
