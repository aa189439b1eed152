"""Made-up results of a study: what its runs would measure if `value` were the truth."""

import inspect
from collections.abc import Callable

from vitrine.models.config import ViTConfig
from vitrine.models.cost import cost_of
from vitrine.studies.estimate import exaflops_of
from vitrine.studies.record import Run, Setup
from vitrine.studies.registry import STUDIES
from vitrine.studies.results import Result
from vitrine.studies.scales import SCALES

# Deviations of three seeds: their standard deviation is 0.002.
JITTER = (-0.002, 0.0, 0.002)
MEASURES = ("accuracy", "fewshot", "held_out", "images_per_second", "largest_batch")


def inside(run: Run, value: Callable[..., float]) -> dict[str, float]:
    """Return what a run measures inside its model: a value for every offset, or every head of every layer."""
    assert run.inspects == "" or isinstance(run.model, ViTConfig)
    if run.inspects == "positions":
        rows, columns = run.model.grid_size
        names = [
            f"similarity_{row}_{column}" for row in range(rows) for column in range(columns) if row or column
        ]
    elif run.inspects == "attention":
        names = [
            f"distance_{layer}_{head}"
            for layer in range(run.model.depth)
            for head in range(run.model.num_heads)
        ]
    else:
        return {}
    by_name = len(inspect.signature(value).parameters) > 1
    return {name: value(run, name) if by_name else value(run) for name in names}


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
                    measures=dict.fromkeys(MEASURES, number) | inside(run, value),
                    params=cost.params, macs=cost.macs,
                    exaflops=exaflops_of(run, run.recipe.training.total_steps), steps=1, seconds=1.0,
                    num_images=run.num_images or 49_000, num_test=10_000, device="cpu", version="0",
                )
            )  # fmt: skip
    return found
