"""The arms of a study: each at the learning rate that is best for it, and one of them also trained twice as long.

The rate is searched in runs a third as long, of the first seed, on held-out images: half, once and twice the scale's
rate, then further out as long as the best lies at the edge. At scale `paper` the rates are the paper's.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from vitrine.recipes import Recipe
from vitrine.studies.record import FIRST_GRID, Run, Setup
from vitrine.studies.results import Result, Results, best_option, is_at_edge
from vitrine.studies.verdicts import EDGE, Finding, left_open

Arms = Callable[[Setup], tuple[Run, ...]]
# Rates that are tried are the scale's times powers of this.
STEP = 2.0
SEARCH_SHARE = 1 / 3
# Candidates for the rate of fine-tuning, as factors on the recipe's; Table 4 tries four rates.
FINE_FACTORS = (0.3, 1.0, 3.0)
RATES_RULE = (
    "Each arm has the learning rate that is best on held-out images in runs a third as long; open if that is at the "
    "edge of the rates tried."
)
# The check of convergence: the reference arm is trained this much longer.
LONGER, SUFFIX = 2, "-longer"


def at_best_rates(setup: Setup, arms: Sequence[Run], *, reference: str = "") -> tuple[Run, ...]:
    """Return the runs at their chosen rates, and those of the group `reference` also twice as long (not at `paper`).

    A run names the arm whose rate it waits for in `needs_rate`; one that begins with other weights keeps its own.
    """
    rated = tuple(_at_rate(setup, run) for run in arms)
    return (*rated, *longer(rated, reference)) if reference and not setup.scale.is_paper else rated


def search_of(arms: Arms) -> Arms:
    """Return the search of a study: short runs of every arm at several rates, on all images, for the first seed."""

    def search(setup: Setup) -> tuple[Run, ...]:
        if setup.seed or setup.scale.is_paper:
            return ()
        first: dict[str, Run] = {}
        for run in arms(setup):
            is_larger = run.needs_rate in first and run.num_images is None
            if run.needs_rate and run.after is None and (run.needs_rate not in first or is_larger):
                first[run.needs_rate] = run
        return tuple(
            _tried(run, name, factor) for name, run in first.items() for factor in factors_of(setup, name)
        )

    return search


def longer(runs: Sequence[Run], group: str) -> list[Run]:
    """Return the runs of a group, and those whose weights they need, twice as long: the check of convergence."""
    by_name = {run.name: run for run in runs}
    listed: dict[str, Run] = {}

    def add(run: Run) -> Run:
        before = add(by_name[run.after]) if run.after is not None else None
        extended = dataclasses.replace(
            run, group=f"{run.group}{SUFFIX}", recipe=lengthened(run.recipe, LONGER),
            role="check" if run.role == "measured" else run.role, after=before.name if before else None,
        )  # fmt: skip
        listed[extended.name] = extended
        return extended

    for run in runs:
        if run.group == group:
            add(run)
    assert listed, f"no run of the study is in the group {group!r}"
    return list(listed.values())


def lengthened(recipe: Recipe, factor: float) -> Recipe:
    """Return a recipe with its steps, and all that is counted in steps, multiplied by `factor`."""
    training = recipe.training

    def scaled(count: int) -> int:
        return max(round(count * factor), 1)

    changed = dataclasses.replace(
        training, total_steps=scaled(training.total_steps), warmup_steps=round(training.warmup_steps * factor),
        log_every=scaled(training.log_every),
        checkpoint_every=training.checkpoint_every and scaled(training.checkpoint_every),
        evaluate_every=training.evaluate_every and scaled(training.evaluate_every),
    )  # fmt: skip
    return dataclasses.replace(recipe, training=changed)


def factors_of(setup: Setup, arm: str) -> tuple[float, ...]:
    """Return the rates that are tried for an arm, as factors on the scale's."""
    low, high = setup.grids.get(arm, FIRST_GRID)
    return tuple(STEP**power for power in range(low, high + 1))


def tried_rates(setup: Setup, arm: str) -> str:
    """Return the lowest and the highest rate that are tried for an arm, as a run's settings have them."""
    factors, base = factors_of(setup, arm), setup.scale.lr
    return f"{factors[0] * base:g} to {factors[-1] * base:g}"


def at_fine_rates(run: Run) -> list[Run]:
    """Return a fine-tuning run at every candidate rate."""
    rates = {factor: factor * run.recipe.training.lr for factor in FINE_FACTORS}
    return [
        dataclasses.replace(
            run, group=f"{run.group}-lr{factor:g}", settings={**run.settings, "lr": rate},
            recipe=_with_rate(run.recipe, rate),
        )
        for factor, rate in rates.items()
    ]  # fmt: skip


def at_best_fine_rate(results: Results, **fixed: Any) -> tuple[list[float], bool]:
    """Return the values at the rate that is best on held-out images, and whether that is at the grid's edge."""
    rate = best_option(results, "lr", **fixed)
    chosen = fixed if rate is None else {**fixed, "lr": rate}
    return results.values(**chosen), is_at_edge(results, "lr", rate, **fixed)


def open_at_edge(findings: Sequence[Finding], results: Results, *, is_narrow: bool = False) -> list[Finding]:
    """Leave all findings open if a run's rate is the lowest or highest that was tried, or the only one.

    The same if `is_narrow`: another rate of the study is at the edge of its grid.
    """
    at_edge = is_narrow or any(is_at_edge_of_search(result) for result in results.measured)
    return [left_open(finding, EDGE) for finding in findings] if at_edge else list(findings)


def is_at_edge_of_search(result: Result) -> bool:
    """Whether a run's rate is at the edge of its search; a run without a search had one rate only."""
    return result.scale != "paper" and ("tried" not in result.settings or is_outermost(result))


def is_outermost(result: Result) -> bool:
    """Whether a run's rate is the lowest or the highest that was tried."""
    return f"{result.settings['rate']:g}" in str(result.settings["tried"]).split(" to ")


def _at_rate(setup: Setup, run: Run) -> Run:
    """Return a run at the rate that was chosen for its arm, with the range that was tried."""
    if not run.needs_rate or setup.scale.is_paper:
        return dataclasses.replace(run, needs_rate="")
    rate = setup.rates.get(run.needs_rate, setup.scale.lr)
    settings = {**run.settings, "rate": rate, "tried": tried_rates(setup, run.needs_rate)}
    recipe = run.recipe if run.after is not None else _with_rate(run.recipe, rate)
    return dataclasses.replace(run, settings=settings, recipe=recipe)


def _tried(run: Run, arm: str, factor: float) -> Run:
    """Return a short run of an arm at one rate."""
    rate = factor * run.recipe.training.lr
    return dataclasses.replace(
        run, group=f"{arm.replace(' ', '-')}-search-{factor:g}", settings={"method": arm, "rate": rate},
        recipe=_with_rate(lengthened(run.recipe, SEARCH_SHARE), rate), role="search", needs_rate="", probes=False,
    )  # fmt: skip


def _with_rate(recipe: Recipe, rate: float) -> Recipe:
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, lr=rate))
