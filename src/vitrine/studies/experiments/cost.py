"""Speed and largest batch by model and input size (appendix D.5, Fig. 12)."""

import dataclasses
import math
import statistics

from vitrine.models.config import ModelConfig
from vitrine.models.variants import configure
from vitrine.recipes import Recipe
from vitrine.reports.charts import Chart, Point
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results
from vitrine.studies.scales import Scale, axial, axial_resnet, resnet, vit
from vitrine.studies.verdicts import Finding, above
from vitrine.training.config import TrainingConfig

BATCH = 64
AXIAL, AXIAL_RESNET = "axial ViT", "AxialResNet"
# By the first word of a name; others are ViTs.
FAMILIES = {"BiT": "ResNet", "Axial": AXIAL, "AxialResNet": AXIAL_RESNET}


def models(scale: Scale) -> dict[str, tuple[str, ModelConfig]]:
    """Return family and config by name: Fig. 12's and 13's at scale `paper`; elsewhere two of each, one axial."""
    if scale.is_paper:
        names = (
            "ViT-B/32",
            "ViT-B/16",
            "ViT-L/32",
            "ViT-L/16",
            "ViT-H/14",
            "Axial-ViT-B/32",
            "Axial-ViT-B/16",
            "AxialResNet-50",
            "BiT-R50x1",
            "BiT-R50x2",
            "BiT-R152x4",
        )
        return {
            name.replace("/", "-"): (FAMILIES.get(name.split("-")[0], "ViT"), configure(name))
            for name in names
        }
    large = {"width": 2 * scale.width, "depth": 2 * scale.depth}
    return {
        "ViT": ("ViT", vit(scale, num_classes=1000)),
        "large-ViT": ("ViT", vit(scale, num_classes=1000, **large)),
        "axial-ViT": (AXIAL, axial(scale, num_classes=1000)),
        "axial-ResNet": (AXIAL_RESNET, axial_resnet(scale, num_classes=1000)),
        "ResNet": ("ResNet", resnet(scale, num_classes=1000)),
        "large-ResNet": ("ResNet", resnet(scale, num_classes=1000, level=2)),
    }


def sizes(scale: Scale) -> tuple[int, ...]:
    """Return the image sides: 64 to 512 in the paper."""
    return (64, 128, 224, 384, 512) if scale.is_paper else tuple(scale.image_size * k for k in (1, 2, 4))


def runs(setup: Setup) -> tuple[Run, ...]:
    """List every model at every size that its patches tile; nothing is trained."""

    listed = []
    for name, (family, config) in models(setup.scale).items():
        for size in sizes(setup.scale):
            stride = getattr(config, "token_stride", (1, 1))
            side = max(round(size / stride[0]), 1) * stride[0]
            listed.append(
                Run(
                    study="cost", group=f"{name}-{size}", seed=setup.seed, work="speed",
                    settings={"model": name, "family": family, "size": size},
                    model=dataclasses.replace(config, image_size=(side, side)),
                    recipe=Recipe(
                        name=f"speed of {name}", claim="nothing is trained", size=side,
                        training=TrainingConfig(total_steps=1, batch_size=BATCH, seed=setup.seed),
                    ),
                )
            )  # fmt: skip
    return tuple(listed)


def growth(results: Results, model: str) -> float | None:
    """Return the power of the number of pixels with which the time per image grows, over the largest sizes."""
    ends = sorted(results.options("size"))[-2:]
    speeds = [results.values("images_per_second", model=model, size=size) for size in ends]
    if len(ends) < 2 or not all(speeds):
        return None
    ratio = statistics.fmean(speeds[0]) / statistics.fmean(speeds[1])
    return math.log(ratio) / math.log((ends[1] / ends[0]) ** 2)


def findings(results: Results) -> list[Finding]:
    """Compare the growth of time with a quadratic one, and the largest batches of ViTs and ResNets."""
    vits = [model for model in results.options("model") if results.where(model=model, family="ViT")]
    powers = [power for model in vits if (power := growth(results, model)) is not None]
    if not powers:
        return []
    compared = [
        above(
            "time grows with the number of pixels, not with its square (1.5 minus the power)",
            1.5 - statistics.fmean(powers), 0.0, is_points=False,
        )
    ]  # fmt: skip
    largest = {}
    for family in ("ViT", "ResNet"):
        by_cost = sorted(results.where(family=family), key=lambda result: result.params)
        if by_cost:
            size = min(results.options("size"), key=lambda side: abs(side - 224))
            largest[family] = results.values("largest_batch", model=by_cost[-1].settings["model"], size=size)
    if all(largest.get(family) for family in ("ViT", "ResNet")):
        ratio = statistics.fmean(largest["ViT"]) / max(statistics.fmean(largest["ResNet"]), 1)
        says = "the largest ViT fits a larger batch than the largest ResNet (log2 of the ratio)"
        return [*compared, above(says, math.log2(max(ratio, 1e-9)), 0.0, is_points=False)]
    says = "the largest batches of ViTs and ResNets (measured on CUDA only)"
    return [*compared, Finding(says=says, difference=0.0, error=0.0, state="open", is_points=False)]


def charts(results: Results) -> list[Chart]:
    """Show images per second and the largest batch by input size."""
    drawn = []
    for measure, label in (("images_per_second", "Images per second"), ("largest_batch", "Largest batch")):
        series = {}
        for model in results.options("model"):
            series[model] = tuple(
                Point(x=size, y=statistics.fmean(values), seeds=len(values))
                for size in sorted(results.options("size"))
                if (values := results.values(measure, model=model, size=size))
            )
        if any(series.values()):
            drawn.append(
                Chart(title=f"Ours, {label.lower()}", y_label=label, x_label="Image side", series=series)
            )
    return drawn


STUDY = Study(
    name="cost",
    title="Speed and memory",
    where="appendices D.5 and D.6, Figs. 12 and 13",
    claim="ViTs are about as fast as ResNets; the quadratic cost in the input size barely shows except for "
    "the largest models; large ViTs fit clearly larger batches than large ResNets.",
    rule="(1) Over the two largest sizes, the time per image grows with a power of the number of pixels "
    "below 1.5. (2) At the size nearest to 224 pixels, the ViT with the most parameters fits a larger "
    "batch than the ResNet with the most (on CUDA only).",
    runs=runs,
    findings=findings,
    charts=charts,
    measure="images_per_second",
    departures="The speed of axial models is shown, and not part of the rule. "
    "Inference on one device; each measurement runs alone, even if several runs are allowed at a time.",
)
