"""Scaling one dimension of a ViT at a time, and all together (appendix D.2, Fig. 8)."""

import math
import statistics
from typing import Any

from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import RATES_RULE, at_best_rates, open_at_edge, search_of
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, point_at
from vitrine.studies.scales import Scale, from_scratch, vit
from vitrine.studies.verdicts import Finding, above

BASE = "base"
DIMENSIONS = ("depth", "width", "MLP width", "patch size", "all")
FACTORS = (0.5, 2.0)


def changed(scale: Scale, dimension: str, factor: float) -> dict[str, Any]:
    """Return the shape with one dimension scaled; a smaller patch is a larger model in compute alone."""
    base = base_shape(scale)
    depth, width, mlp = (max(round(base[name] * factor), 1) for name in ("depth", "width", "mlp_width"))
    patch = nearest_divisor(scale.image_size, base["patch_size"] / factor)
    heads = max(round(base["num_heads"] * factor), 1)
    return base | {
        "depth": {"depth": depth},
        "width": {"width": width, "num_heads": heads},
        "MLP width": {"mlp_width": mlp},
        "patch size": {"patch_size": patch},
        "all": {"depth": depth, "width": width, "num_heads": heads, "mlp_width": mlp},
    }[dimension]  # fmt: skip


def nearest_divisor(size: int, wanted: float) -> int:
    """Return the patch side that tiles an image and is nearest to the requested one."""
    return min((side for side in range(1, size + 1) if size % side == 0), key=lambda side: abs(side - wanted))


def base_shape(scale: Scale) -> dict[str, Any]:
    """Return the base shape: the paper's has 8 layers, width 1024, MLP 2048, patch 32."""
    if scale.is_paper:
        return {"depth": 8, "width": 1024, "mlp_width": 2048, "patch_size": 32, "num_heads": 16}
    # Heads double and halve with the width.
    heads = 2 * max(scale.num_heads // 2, 1)
    width = scale.width // 3 * 2 if scale.width % 3 == 0 else scale.width
    return {
        "depth": max(scale.depth * 2 // 3, 2), "width": width, "mlp_width": 2 * width,
        "patch_size": scale.patch_size, "num_heads": heads,
    }  # fmt: skip


def runs(setup: Setup) -> tuple[Run, ...]:
    """List the base and every dimension at half and at twice its size, each at its best rate."""
    return at_best_rates(setup, arms(setup), reference=f"{BASE}-1")


def arms(setup: Setup) -> tuple[Run, ...]:
    """List all shapes at the scale's rate."""
    scale, seed = setup.scale, setup.seed

    def run(dimension: str, factor: float, shape: dict[str, Any]) -> Run:
        group = f"{dimension.replace(' ', '-')}-{factor:g}"
        return Run(
            study="shape", group=group, seed=seed, settings={"dimension": dimension, "factor": factor},
            model=vit(scale, num_classes=setup.num_classes, **shape), probes=True,
            recipe=from_scratch(scale, seed=seed, name=group), needs_rate=group,
        )  # fmt: skip

    scaled = [(name, factor) for name in DIMENSIONS for factor in FACTORS]
    return (
        run(BASE, 1.0, base_shape(scale)),
        *(run(name, factor, changed(scale, name, factor)) for name, factor in scaled),
    )


def slope(results: Results, dimension: str) -> tuple[float, float] | None:
    """Return the accuracy gained by a doubling of compute from the smallest to the largest, and its error."""
    ends = [results.where(dimension=dimension, factor=factor) for factor in FACTORS]
    if not all(ends):
        return None
    (x1, y1), (x2, y2) = (
        (math.log2(members[0].exaflops), statistics.fmean(results.values(dimension=dimension, factor=factor)))
        for members, factor in zip(ends, FACTORS, strict=True)
    )
    doublings = max(x2 - x1, 1e-9)
    error = results.spread() * sum(1 / len(members) for members in ends) ** 0.5
    return (y2 - y1) / doublings, error / doublings


def findings(results: Results) -> list[Finding]:
    """Compare the gain from a doubling of compute in each dimension."""
    slopes = {name: slope(results, name) for name in DIMENSIONS}
    depth, width, patch = (slopes[name] for name in ("depth", "width", "patch size"))
    if depth is None or width is None or patch is None:
        return []
    both = (depth[1] ** 2 + width[1] ** 2) ** 0.5
    compared = [
        above("doubling the compute by depth gains more than by width", depth[0] - width[0], both),
        above("smaller patches help without more parameters", *patch),
    ]
    return open_at_edge(compared, results)


def charts(results: Results) -> list[Chart]:
    """Show accuracy over compute, one line per dimension."""
    series = {}
    for name in DIMENSIONS:
        points: list[Point] = []
        for dimension, factor in ((name, 0.5), (BASE, 1.0), (name, 2.0)):
            members = results.where(dimension=dimension, factor=factor)
            if members:
                points += point_at(results, members[0].exaflops, dimension=dimension, factor=factor)
        series[name] = tuple(sorted(points, key=lambda one: one.x))
    return [
        Chart(
            title="Ours, test accuracy", y_label="Accuracy [%]", x_label="Compute [exaFLOPs]", is_log=True,
            series=series,
        )
    ]  # fmt: skip


STUDY = Study(
    name="shape",
    title="Which dimension to scale",
    where="appendix D.2, Fig. 8",
    claim="Scaling depth gains most, up to 64 layers and less beyond 16; width gains least; smaller patches "
    "help without more parameters; scaling all dimensions together is robust.",
    rule="Test accuracy gained per doubling of compute between half and twice the base. (1) The gain of "
    "depth is above that of width by more than twice the standard error of their difference. (2) The "
    "gain of smaller patches is above zero by more than twice its standard error. " + RATES_RULE,
    runs=runs,
    search=search_of(arms),
    widens=True,
    findings=findings,
    charts=charts,
)
