"""Made-up results of a study: what its runs would measure if `value` were the truth."""

from collections.abc import Callable

from vitrine.models.cost import cost_of
from vitrine.studies.estimate import exaflops_of
from vitrine.studies.record import Run, Setup
from vitrine.studies.registry import STUDIES
from vitrine.studies.results import Result
from vitrine.studies.scales import SCALES

# Deviations of three seeds: their standard deviation is 0.002.
JITTER = (-0.002, 0.0, 0.002)
MEASURES = ("accuracy", "fewshot", "held_out", "images_per_second", "largest_batch")


def made_results(
    study: str, value: Callable[[Run], float], *, scale: str = "small", seeds: int = 3
) -> list[Result]:
    found = []
    for seed in range(seeds):
        for run in STUDIES[study].runs(
            Setup(scale=SCALES[scale], seed=seed, num_classes=10, num_images=49_000)
        ):
            number = value(run) + JITTER[seed]
            cost = cost_of(run.model)
            found.append(
                Result(
                    study=study, run=run.name, key=run.name, series="", command="vitrine study",
                    group=run.group, seed=seed, role=run.role,
                    settings=run.settings, scale=scale, data="made-up",
                    measures=dict.fromkeys(MEASURES, number),
                    params=cost.params, macs=cost.macs,
                    exaflops=exaflops_of(run, run.recipe.training.total_steps), steps=1, seconds=1.0,
                    num_images=run.num_images or 49_000, num_test=10_000, device="cpu", version="0",
                )
            )  # fmt: skip
    return found
