"""ViT's descendants on little data: T2T's tokens, PEG, a pyramid, words in patches, DeiT's token with a teacher.

Each is compared with the plain ViT of the scale at as many parameters (within 5 %) and as much training compute: if
one step costs more multiply-adds, there are fewer steps. Runs see the data at least 60 times, except at scale tiny.
Each takes the learning rate that is best on held-out images of the first data set, in runs a third as long; a best
rate at the edge of the rates tried has its neighbour tried as well.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

from vitrine.data.augmenting.augment import Augment
from vitrine.models.cost import cost_of
from vitrine.objectives import DistillationObjective
from vitrine.recipes.recipe import Recipe
from vitrine.reports.charts import Chart, Point
from vitrine.studies.arms import LONGER, SEARCH_SHARE, SUFFIX, factors_of, is_outermost, tried_rates
from vitrine.studies.descendant_models import METHODS, PLAIN, TAUGHT, model_of, plain
from vitrine.studies.record import Role, Run, Setup, Study
from vitrine.studies.results import Result, Results, point_of, points_by
from vitrine.studies.scales import Scale, from_scratch, resnet
from vitrine.studies.verdicts import EDGE, Finding, ahead, left_open

NAME = "descendants"
LEAST_EPOCHS = 60
# The same for all methods: sixty passes over about ten thousand images need it.
AUGMENT = Augment(mixup=0.2, cutmix=1.0, label_smoothing=0.1)
# A step of the student is a forward and two backward passes; the teacher adds a forward pass.
TEACHER_SHARE = 1 / 3


def runs(setup: Setup) -> tuple[Run, ...]:
    """List every method at its chosen rate, DeiT's token after its teacher; last, a longer run of the plain ViT."""
    teacher = teacher_of(setup)
    listed = [teacher]
    for name in METHODS:
        rate = setup.rates.get(name, setup.scale.lr)
        listed.append(run_of(setup, name, teacher, group=slug(name), rate=rate, needs_rate=name))
    listed.append(
        run_of(
            setup, PLAIN, teacher, group=f"{slug(PLAIN)}{SUFFIX}", rate=setup.rates.get(PLAIN, setup.scale.lr),
            needs_rate=PLAIN, role="check", share=LONGER,
        )
    )  # fmt: skip
    return tuple(listed)


def search(setup: Setup) -> tuple[Run, ...]:
    """List short runs of every method at every rate, for the first seed."""
    if setup.seed:
        return ()
    teacher = teacher_of(setup)
    return tuple(
        run_of(
            setup, name, teacher, group=f"{slug(name)}-search-{factor:g}", rate=factor * setup.scale.lr,
            role="search", share=SEARCH_SHARE,
        )
        for name in METHODS
        for factor in factors_of(setup, name)
    )  # fmt: skip


def teacher_of(setup: Setup) -> Run:
    """Return the run of the teacher, a ResNet that is trained for as many steps as the plain ViT."""
    return Run(
        study=NAME, group="teacher", seed=setup.seed, settings={"method": "teacher"}, role="preparation",
        model=resnet(setup.scale, num_classes=setup.num_classes),
        recipe=recipe(setup, "teacher", steps(setup), rate=setup.scale.lr),
    )  # fmt: skip


def run_of(
    setup: Setup, name: str, teacher: Run, *, group: str, rate: float, role: Role = "measured", share: float = 1.0,
    needs_rate: str = "",
) -> Run:  # fmt: skip
    """Return a run of one method with the compute of a fraction of the plain ViT's run."""
    is_taught = name == TAUGHT
    made = recipe(
        setup, name, math.ceil(share * steps(setup) / weight(name, setup.scale, setup.num_classes)), rate=rate
    )
    if is_taught:
        made = made.with_objective(DistillationObjective(learns="hard-logits"))
    method = name if role != "check" else f"{name}, {share:g} times the steps"
    settings = {"method": method, "rate": rate}
    if role != "search":  # a run of the search stays the same when the grid is widened
        settings["tried"] = tried_rates(setup, name)
    return Run(
        study=NAME, group=group, seed=setup.seed, settings=settings,
        model=model_of(name, setup.scale, setup.num_classes), recipe=made, role=role, needs_rate=needs_rate,
        after=teacher.name if is_taught else None, uses="teacher" if is_taught else "weights",
    )  # fmt: skip


@functools.cache
def weight(name: str, scale: Scale, num_classes: int) -> float:
    """Return the compute of a method's step, its teacher's forward pass included, in steps of the plain ViT."""
    macs: float = cost_of(model_of(name, scale, num_classes)).macs
    if name == TAUGHT:
        macs += TEACHER_SHARE * cost_of(resnet(scale, num_classes=num_classes)).macs
    return macs / cost_of(plain(scale, num_classes)).macs


def steps(setup: Setup) -> int:
    """Return the steps of the plain ViT: those of the scale, and at least sixty passes for every method.

    Both grow with the length that is asked for.
    """
    scale = setup.scale
    if scale.name == "tiny":
        return scale.steps
    heaviest = max(weight(name, scale, setup.num_classes) for name in METHODS)
    passes = LEAST_EPOCHS * scale.length
    return max(scale.steps, math.ceil(passes * setup.num_images / scale.batch_size * heaviest))


def recipe(setup: Setup, name: str, total_steps: int, *, rate: float) -> Recipe:
    """Return the recipe that all methods share, with `total_steps` steps at this learning rate."""
    made = from_scratch(setup.scale, seed=setup.seed, name=name, total_steps=total_steps, lr=rate)
    return dataclasses.replace(made, augment=AUGMENT)


def slug(name: str) -> str:
    """Convert a name to a folder name."""
    return name.removeprefix("+ ").replace("'", "").replace(" ", "-")


def findings(results: Results) -> list[Finding]:
    """Compare every method with the plain ViT; open if a best rate is at the edge of the grid."""
    base, spread = results.values(method=PLAIN), results.spread()
    gains: list[Finding] = []
    for name in METHODS:
        if name == PLAIN:
            continue
        comparison = ahead(
            f"{name} is better than the plain ViT", results.values(method=name), base, spread=spread
        )
        at_edge = any(is_outermost(run) for arm in (name, PLAIN) for run in results.where(method=arm))
        gains += [left_open(finding, EDGE) for finding in comparison] if at_edge else comparison
    return gains


def charts(results: Results) -> list[Chart]:
    """Show every method, and the accuracy on held-out images of every rate that was tried."""
    shown = [
        Chart(
            title="Ours, test accuracy at equal parameters and compute", y_label="Accuracy [%]",
            series={"accuracy": points_by(results, "method", list(METHODS))},
        )
    ]  # fmt: skip
    tried = [result for result in results.all if result.role == "search" and "held_out" in result.measures]
    if tried:
        shown.append(
            Chart(
                title="Learning rates tried, held-out images, short runs",
                y_label="Accuracy [%]", series={name: rates_of(tried, name) for name in METHODS},
            )
        )  # fmt: skip
    return shown


def rates_of(tried: Sequence[Result], name: str) -> tuple[Point, ...]:
    """Return one point per rate of a method."""
    own = sorted(
        (one for one in tried if one.settings["method"] == name), key=lambda one: one.settings["rate"]
    )
    return tuple(point_of(f"{one.settings['rate']:g}", [one.measures["held_out"]]) for one in own)


STUDY = Study(
    name=NAME,
    title="ViT's descendants on little data",
    where="arXiv:2101.11986 (T2T-ViT), 2102.10882 (CPVT), 2106.13797 (PVT v2), 2103.00112 (TNT), 2012.12877 (DeiT)",
    claim="Each of these changes makes a ViT better when there is little data: overlapping tokens, positions from "
    "convolutions, a pyramid, words inside patches, a convolutional teacher.",
    rule="Test accuracy at as many parameters (within 5 %) and as much training compute as the plain ViT. Each "
    "method is above it by more than twice the standard error of the difference; below it by as much, the "
    "sentence is contradicted; otherwise it is open, as it is where a best rate is at the edge of its grid.",
    runs=runs,
    search=search,
    widens=True,
    findings=findings,
    charts=charts,
    seeds=3,
    departures="The papers compare on ImageNet. The compute of DeiT's token includes the teacher's forward passes, "
    "not the teacher's own training. All methods share one augmentation. Each has the learning rate that was best on "
    "held-out images of the first data set of the call, one seed, a third of the steps.",
)
