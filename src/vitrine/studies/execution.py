"""Run the unfinished runs of all plans in one pool, and write a result line per run and a page per study."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from vitrine.runtime.hardware import measured_matmul_rate
from vitrine.runtime.locks import require_lock
from vitrine.runtime.progress import announced, lengthen, present
from vitrine.runtime.run_folder import RunFolder
from vitrine.studies.datasets import make_arrays
from vitrine.studies.estimate import Estimate, estimate
from vitrine.studies.inside import DISTANCE, SIMILARITY
from vitrine.studies.planning import Plan, new_runs, with_rates
from vitrine.studies.pool import Done, carry_out_all
from vitrine.studies.record import Run
from vitrine.studies.reporting import write_study_page
from vitrine.studies.results import append_result
from vitrine.studies.training_runs import Place, carry_out_run
from vitrine.training.stopping import StoppedError
from vitrine.version import __version__


@dataclass(frozen=True, kw_only=True)
class MatmulRate:
    """Speed of large matrix products, stated by the user or measured here."""

    flops_per_second: float
    measured_on: str | None
    """Name of the device; None if the rate was stated."""


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The plan of a study, shown before the first run."""

    num_runs: int
    num_unfinished: int
    cost: Estimate | None
    """None if nothing is left to do."""
    jobs: int
    rate: MatmulRate | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of the runs, beside their results on disk."""

    failed: tuple[str, ...]
    notes: tuple[str, ...]
    plans: tuple[Plan, ...]
    """The plans with the runs whose rates were chosen meanwhile."""


def execute_plans(
    plans: Sequence[Plan], *, scale: str, jobs: int, device: str, workers: int, rate: float | None
) -> Outcome:
    """Run everything that is not finished, `jobs` runs at a time, and write the studies' pages."""
    with ExitStack() as claims:
        for folder in dict.fromkeys(plan.folder for plan in plans):
            claims.enter_context(require_lock(folder, advice="wait for it, or write to another folder"))
        plans = with_rates(plans)
        todo = [run for plan in plans for run in plan.unfinished()]
        present(_plan_record(plans, todo, jobs=jobs, rate=rate))
        place = Place(sets={plan.on: plan.data for plan in plans}, device=device, jobs=jobs)
        notes = _make_arrays(plans, todo, workers=workers)
        try:
            failed, plans = _run_all(plans, todo, place, scale=scale, notes=notes)
        except StoppedError:
            raise StoppedError("stopped; everything is saved; run the same call again to continue") from None
        for plan in plans:
            write_study_page(plan.folder / plan.page, plan.study, plan.finished(), notes=notes)
    reasons = tuple(f"{name_of(done.run)}: {done.reason}" for done in failed)
    return Outcome(failed=reasons, notes=tuple(notes), plans=tuple(plans))


def name_of(run: Run) -> str:
    """Name a run among those of several studies."""
    return "/".join(part for part in (run.on, run.study, run.name) if part)


def matmul_rate(tflops: float | None) -> MatmulRate:
    """Return the stated rate in TFLOP/s, or measure this device's."""
    if tflops is not None:
        return MatmulRate(flops_per_second=tflops * 1e12, measured_on=None)
    rate, device = measured_matmul_rate("bf16")
    return MatmulRate(flops_per_second=rate, measured_on=device)


def _plan_record(plans: Sequence[Plan], todo: Sequence[Run], *, jobs: int, rate: float | None) -> StudyPlan:
    total = sum(plan.num_expected for plan in plans)
    waiting = [run for plan in plans for run in plan.waiting()]
    if not todo:
        return StudyPlan(num_runs=total, num_unfinished=0, cost=None, jobs=jobs, rate=None)
    speed = matmul_rate(rate)
    data = plans[0].data["data"]
    cost = estimate([*todo, *waiting], rate=speed.flops_per_second, num_test=data.counts[data.test_split])
    return StudyPlan(
        num_runs=total, num_unfinished=len(todo) + len(waiting), cost=cost, jobs=jobs, rate=speed
    )


def _make_arrays(plans: Sequence[Plan], todo: Sequence[Run], *, workers: int) -> list[str]:
    """Write the arrays that the runs read; return notes on images that cannot be read."""
    notes: list[str] = []
    for on, sets in {plan.on: plan.data for plan in plans}.items():
        own = [run for run in todo if run.on == on]
        own += [run for plan in plans if plan.on == on for run in plan.waiting()]
        own = own or [run for plan in plans for run in plan.runs if run.on == on]
        for name, data in sets.items():
            sizes = {run.model.image_size[0] for run in own if run.work == "training" and run.data == name}
            sizes |= {run.model.image_size[0] for run in own if run.probes and name == "target0"}
            notes += make_arrays(data, sizes, workers=workers)
    return notes


def _run_all(
    plans: Sequence[Plan], todo: Sequence[Run], place: Place, *, scale: str, notes: Sequence[str]
) -> tuple[list[Done], Sequence[Plan]]:
    """Run everything; a study's page is written as soon as its last run ends.

    Return what failed, and the plans with the runs whose rates were chosen meanwhile.
    """
    left = Counter((run.on, run.study) for run in todo)
    failed: list[Done] = []

    def released() -> list[Run]:
        """Return the runs whose learning rate the last run determined."""
        nonlocal plans
        if not any(plan.study.search for plan in plans):
            return []
        before, plans = plans, with_rates(plans, failed=[done.run for done in failed])
        added = new_runs(before, plans)
        left.update((run.on, run.study) for run in added)
        # A wider search adds runs; a run that waited and has its result from an earlier call is no longer left.
        lengthen(len(added) + _num_waiting(plans) - _num_waiting(before))
        return added

    with announced("Studies", total=len(todo) + _num_waiting(plans)) as advance:
        for done in carry_out_all(todo, carry_out_run, place, jobs=place.jobs, names=name_of, more=released):
            run = done.run
            plan = next(one for one in plans if (one.on, one.study.name) == (run.on, run.study))
            if done.values is None:
                failed.append(done)
                # The last line of a traceback is the most informative.
                advance(1, f"{name_of(run)} failed: {done.reason.strip().splitlines()[-1]}")
            else:
                sharing = 1 if run.work == "speed" else place.jobs
                append_result(plan.folder, _result_line(run, plan, done.values, scale=scale, jobs=sharing))
                _clear(run)
                shown = ", ".join(
                    f"{key} {value:.4g}"
                    for key, value in done.values["measures"].items()
                    if not key.startswith((SIMILARITY, DISTANCE))
                )
                advance(1, f"{name_of(run)} {shown}")
            left[run.on, run.study] -= 1
            if not left[run.on, run.study]:
                write_study_page(plan.folder / plan.page, plan.study, plan.finished(), notes=notes)
    return failed, plans


def _num_waiting(plans: Sequence[Plan]) -> int:
    """Count the runs that wait for a rate."""
    return sum(len(plan.waiting()) for plan in plans)


def _result_line(run: Run, plan: Plan, values: Mapping[str, Any], *, scale: str, jobs: int) -> dict[str, Any]:
    data = plan.data[run.data]
    return {
        "study": run.study,
        "run": run.name,
        "key": plan.keys[run.name],
        "series": plan.series,
        "command": plan.command,
        "group": run.group,
        "seed": run.seed,
        "role": run.role,
        "settings": run.settings,
        "scale": scale,
        "data": data.address,
        "num_test": data.counts[data.test_split],
        "version": __version__,
        "jobs": jobs,
        **values,
    }


def _clear(run: Run) -> None:
    """Remove a finished run's folder, but keep the weights if another run starts from them."""
    assert run.folder is not None
    folder = RunFolder(run.folder)
    if run.role != "preparation":
        shutil.rmtree(folder.path, ignore_errors=True)
        return
    for path in folder.path.iterdir():
        if path == folder.model:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
