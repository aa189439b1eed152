"""From studies, a scale and data to plans: every run, its key, what is left to do, and rates of a search."""

import dataclasses
import functools
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrine.errors import ConfigError
from vitrine.runtime.run_folder import RunFolder
from vitrine.studies.datasets import StudyData, describe_data
from vitrine.studies.record import FIRST_GRID, Run, Setup, Study, hash_of, in_order, keys_of
from vitrine.studies.results import Result, read_results
from vitrine.studies.scales import Scale

PAGE = "index.html"
# A search that is widened stops at this power of the step between rates, in both directions.
WIDEST = 4
Grids = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Facts about the data on which a list of runs and its cost depend."""

    num_classes: int
    num_images: int
    num_test: int
    target_classes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One study, all its runs and the data that they read."""

    study: Study
    runs: tuple[Run, ...]
    keys: Mapping[str, str]
    """Hash of everything that determines a run's result, by the run's name."""
    data: Mapping[str, StudyData]
    out: Path
    series: str
    """A hash of scale and data: results of one series are comparable."""
    command: str
    expected: tuple[Run, ...]
    """All runs, including those that wait for a rate."""
    remake: Callable[[Mapping[str, float], Grids], "Plan"]
    """Return this plan with the runs whose rates are chosen, and with wider grids of rates."""
    grids: Grids = field(default_factory=dict)
    """The grid of every method whose search was widened."""
    on: str = ""
    """Name of the data set, if a call has several."""

    @property
    def folder(self) -> Path:
        """The folder of the study's results."""
        return self.out / self.study.name

    @property
    def page(self) -> str:
        """The name of the study's page."""
        return f"{self.on}.html" if self.on else PAGE

    @property
    def num_expected(self) -> int:
        """The number of all runs, including those that wait for a rate."""
        return len(self.expected)

    def waiting(self) -> list[Run]:
        """Return the runs that wait for a rate; their rates are not the final ones."""
        known = {run.name for run in self.runs}
        return [run for run in self.expected if run.name not in known]

    def finished(self) -> list[Result]:
        """Return the results of the runs that have finished, in the order of the plan."""
        by_key = {result.key: result for result in read_results(self.folder)}
        return [by_key[self.keys[run.name]] for run in self.runs if self.keys[run.name] in by_key]

    def unfinished(self) -> list[Run]:
        """Return the runs left to do, and finished ones whose weights are needed again but were removed."""
        done = {result.key for result in self.finished()}
        left = {run.name for run in self.runs if self.keys[run.name] not in done}
        for run in self.runs:
            is_needed = any(other.after == run.name and other.name in left for other in self.runs)
            if is_needed and run.folder is not None and not RunFolder(run.folder).has_model:
                left.add(run.name)
        return [run for run in self.runs if run.name in left]


def make_plans(
    studies: Sequence[Study],
    scale: Scale,
    *,
    data: str,
    target: str | None,
    seeds: int | None,
    out: Path,
    compiles: bool,
) -> list[Plan]:
    """List the runs of every study for this data: one set, or several separated by commas.

    A study that searches learning rates does so on the first set; all sets use the rates that are best there.
    """
    scale = dataclasses.replace(scale, compiles=True) if compiles else scale
    addresses = addresses_in(data)
    names = [Path(address).name for address in addresses]
    if len(set(names)) < len(names):
        raise ConfigError(f"data sets must differ in the last part of their names, got {', '.join(names)}")
    plans = []
    for number, address in enumerate(addresses):
        on = names[number] if len(addresses) > 1 else ""
        plans += plans_on(studies, scale, address, target=target, seeds=seeds, out=out, on=on, turn=number)
    return plans


def addresses_in(data: str) -> list[str]:
    """Split a list of addresses at its commas; those after a question mark belong to an address's options."""
    lists, _, options = data.partition("?")
    addresses = [part for part in lists.split(",") if part]
    if options and addresses:
        addresses[-1] += f"?{options}"
    return addresses


def plans_on(
    studies: Sequence[Study],
    scale: Scale,
    data: str,
    *,
    target: str | None,
    seeds: int | None,
    out: Path,
    on: str,
    turn: int,
) -> list[Plan]:
    """List the runs of every study on one data set."""
    sets = describe_all(data, target, folder=out / "data")
    fingerprints = {name: one.fingerprint for name, one in sets.items()}
    # The length is in the steps.
    series = hash_of({"scale": _without_length(scale), "data": fingerprints})
    facts = facts_of(sets)

    def plan_of(study: Study, rates: Mapping[str, float], grids: Grids) -> Plan:
        listed = runs_of(study, scale, seeds=seeds, facts=facts, searches=not turn, rates=rates, grids=grids)
        runs = [run for run in listed if not (study.search and run.needs_rate) or run.needs_rate in rates]
        keys = keys_of(runs, fingerprints)
        folders = {run.name: out / study.name / "runs" / f"{run.name}-{keys[run.name]}" for run in runs}
        return Plan(
            study=study,
            runs=tuple(
                dataclasses.replace(
                    run, on=on, turn=turn, folder=folders[run.name], before=folders.get(run.after or "")
                )
                for run in runs
            ),
            keys=keys,
            data=sets,
            out=out,
            series=series,
            command=command_of(study.name, scale, data=data, target=target),
            expected=tuple(listed),
            # Bound to this study, however often and after whichever other study it is made again.
            remake=functools.partial(plan_of, study),
            grids=grids,
            on=on,
        )

    return [plan_of(study, {}, {}) for study in studies]


def _without_length(scale: Scale) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(scale).items() if name != "length"}


def describe_all(data: str, target: str | None, *, folder: Path) -> dict[str, StudyData]:
    """Open the data set and every target (several, separated by commas), and describe them."""
    sets = {"data": describe_data(data, folder=folder)}
    for number, address in enumerate(part for part in (target or "").split(",") if part):
        sets[f"target{number}"] = describe_data(address, folder=folder)
    return sets


def facts_of(sets: Mapping[str, StudyData]) -> DataFacts:
    """Return the facts about the data sets on which lists of runs depend."""
    own = sets["data"]
    return DataFacts(
        num_classes=len(own.classes),
        num_images=own.counts["train"],
        num_test=own.counts[own.test_split],
        target_classes=tuple(len(part.classes) for name, part in sets.items() if name != "data"),
    )


def runs_of(
    study: Study,
    scale: Scale,
    *,
    seeds: int | None,
    facts: DataFacts,
    searches: bool = True,
    rates: Mapping[str, float] | None = None,
    grids: Grids | None = None,
) -> list[Run]:
    """List the runs of every seed, each after the run whose weights it needs, and those of the search."""
    runs: list[Run] = []
    for seed in range(seeds or study.seeds):
        setup = Setup(
            scale=scale,
            seed=seed,
            num_classes=facts.num_classes,
            num_images=facts.num_images,
            target_classes=facts.target_classes,
            rates=rates or {},
            grids=grids or {},
        )
        runs += study.runs(setup)
        if searches and study.search is not None:
            runs += study.search(setup)
    return in_order(runs)


def command_of(study: str, scale: Scale, *, data: str, target: str | None) -> str:
    """Return the command that repeats these results, apart from the number of seeds."""
    words = ["vitrine", "study", study, data, "--scale", scale.name]
    if target:
        words += ["--target", target]
    if scale.length != 1:
        words += ["--steps", f"{scale.length:g}"]
    return shlex.join(words)


def ended_searches(plan: Plan, *, failed: Collection[str] = ()) -> tuple[dict[str, float], Grids]:
    """Return the best rate of every method whose search has ended, and the grids of those that must be widened."""
    rates: dict[str, float] = {}
    wider: dict[str, tuple[int, int]] = {}
    held_out = {result.run: result.measures.get("held_out") for result in plan.finished()}
    searched = [run for run in plan.runs if run.role == "search"]
    for method in dict.fromkeys(run.settings["method"] for run in searched):
        own = [run for run in searched if run.settings["method"] == method]
        if not all(run.name in held_out or run.name in failed for run in own):
            continue
        scores = {run.settings["rate"]: held_out.get(run.name) for run in own}
        known = {rate: score for rate, score in scores.items() if score is not None}
        if not known:
            continue
        best, (low, high) = max(known, key=known.__getitem__), plan.grids.get(method, FIRST_GRID)
        if plan.study.widens and best == min(scores) and low > -WIDEST:
            wider[method] = (low - 1, high)
        elif plan.study.widens and best == max(scores) and high < WIDEST:
            wider[method] = (low, high + 1)
        else:
            rates[method] = best
    return rates, wider


def with_rates(plans: Sequence[Plan], *, failed: Sequence[Run] = ()) -> list[Plan]:
    """Return the plans, with every run whose rate has been chosen and every rate that is still to be tried."""
    plans = list(plans)
    rates: dict[str, dict[str, float]] = {}
    grids: dict[str, Grids] = {}
    is_widening = True
    while is_widening:
        is_widening = False
        for number, plan in enumerate(plans):
            # Only the first data set of a study has searches.
            if not any(run.role == "search" for run in plan.runs):
                continue
            # Studies have searches of the same name.
            lost = {run.name for run in failed if (run.on, run.study) == (plan.on, plan.study.name)}
            rates[plan.study.name], wider = ended_searches(plan, failed=lost)
            if wider:
                is_widening = True
                plans[number] = plan.remake(rates[plan.study.name], {**plan.grids, **wider})
            grids[plan.study.name] = plans[number].grids
    return [
        plan.remake(rates.get(plan.study.name, {}), grids.get(plan.study.name, {}))
        if plan.study.search
        else plan
        for plan in plans
    ]


def new_runs(before: Sequence[Plan], after: Sequence[Plan]) -> list[Run]:
    """Return the unfinished runs that a plan has now and did not have before."""
    known = {(plan.on, plan.study.name, run.name) for plan in before for run in plan.runs}
    return [
        run
        for plan in after
        for run in plan.unfinished()
        if (plan.on, plan.study.name, run.name) not in known
    ]
