"""The search of learning rates: which is best on held-out images for each method, and whose search has ended."""

from collections.abc import Collection, Sequence

from vitrine.studies.planning import Plan
from vitrine.studies.record import Run


def chosen_rates(plans: Sequence[Plan], *, failed: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """Return the best rate of every method whose search has ended, by study; runs that failed are skipped."""
    rates: dict[str, dict[str, float]] = {}
    for plan in plans:
        searched = [run for run in plan.runs if run.role == "search"]
        if not searched:
            continue
        held_out = {result.run: result.measures.get("held_out") for result in plan.finished()}
        for method in dict.fromkeys(run.settings["method"] for run in searched):
            own = [run for run in searched if run.settings["method"] == method]
            if all(run.name in held_out or run.name in failed for run in own):
                scores = {run.settings["rate"]: held_out.get(run.name) for run in own}
                known = {rate: score for rate, score in scores.items() if score is not None}
                if known:
                    rates.setdefault(plan.study.name, {})[method] = max(known, key=known.__getitem__)
    return rates


def with_rates(plans: Sequence[Plan], *, failed: Collection[str] = ()) -> list[Plan]:
    """Return the plans with every run whose rate is chosen."""
    rates = chosen_rates(plans, failed=failed)
    return [plan.remake(rates.get(plan.study.name, {})) if plan.study.search else plan for plan in plans]


def new_runs(before: Sequence[Plan], after: Sequence[Plan]) -> list[Run]:
    """Return the unfinished runs that a plan has now and did not have before."""
    known = {(plan.on, plan.study.name, run.name) for plan in before for run in plan.runs}
    return [
        run
        for plan in after
        for run in plan.unfinished()
        if (plan.on, plan.study.name, run.name) not in known
    ]
