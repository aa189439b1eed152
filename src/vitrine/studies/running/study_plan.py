"""From studies to runs that are left, and through the pool to results and pages."""

import dataclasses
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import duration
from vitrine.studies.running.study_outcome import StudyLine, StudyResult

if TYPE_CHECKING:
    from vitrine.studies.record import Run, Study
    from vitrine.studies.results import Result
    from vitrine.studies.running.study_data import StudyData
    from vitrine.studies.running.study_run import Place
    from vitrine.studies.scales import Scale


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One study, all its runs and the data that they read."""

    study: "Study"
    runs: "tuple[Run, ...]"
    keys: dict[str, str]
    data: "dict[str, StudyData]"
    out: Path
    series: str
    """A hash of scale and data: results of one series may be compared."""
    command: str

    @property
    def folder(self) -> Path:
        """Where the study's results are."""
        return self.out / self.study.name

    def run_folder(self, run: "Run") -> Path:
        """Return where a run keeps its checkpoints: never where other data or another recipe left some."""
        return self.folder / "runs" / f"{run.name}-{self.keys[run.name]}"

    def finished(self) -> "list[Result]":
        """Return the results of these runs that are there already, in the order of the list."""
        from vitrine.studies.results import read_results

        by_key = {result.key: result for result in read_results(self.folder)}
        return [by_key[self.keys[run.name]] for run in self.runs if self.keys[run.name] in by_key]

    def unfinished(self) -> "list[Run]":
        """Return the runs that are left, and finished ones whose weights are gone and needed."""

        done = {result.key for result in self.finished()}
        left = {run.name for run in self.runs if self.keys[run.name] not in done}
        for run in self.runs:
            is_needed = any(other.after == run.name and other.name in left for other in self.runs)
            if is_needed and not RunFolder(self.run_folder(run)).has_model:
                left.add(run.name)
        return [run for run in self.runs if run.name in left]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a list of runs, and its cost, depend on."""

    num_classes: int
    num_images: int
    num_test: int
    target_classes: tuple[int, ...] = ()


def looked_at(data: str, target: str | None, *, folder: Path) -> "dict[str, StudyData]":
    """Open the data set and every target, and describe them."""
    from vitrine.studies.running.study_data import look_at

    sets = {"data": look_at(data, folder=folder)}
    for number, part in enumerate(part for part in (target or "").split(",") if part):
        sets[f"target{number}"] = look_at(part, folder=folder)
    return sets


def facts_of(sets: "dict[str, StudyData]") -> Facts:
    """Return what the lists need to know of data sets."""
    own = sets["data"]
    return Facts(
        num_classes=len(own.classes),
        num_images=own.counts["train"],
        num_test=own.counts[own.test_split],
        target_classes=tuple(len(part.classes) for name, part in sets.items() if name != "data"),
    )


def runs_of(study: "Study", scale: "Scale", *, seeds: int | None, facts: Facts) -> "list[Run]":
    """List the runs of every seed, each after the one whose weights it needs."""
    from vitrine.studies.record import Setup, in_order

    found: list[Run] = []
    for seed in range(seeds or study.seeds):
        setup = Setup(
            scale=scale, seed=seed, num_classes=facts.num_classes, num_images=facts.num_images,
            target_classes=facts.target_classes,
        )  # fmt: skip
        found += study.runs(setup)
    return in_order(found)


def planned(
    chosen: "Sequence[Study]", scale: "Scale", *, data: str, target: str | None, seeds: int | None, out: Path,
    compiles: bool,
) -> list[Plan]:  # fmt: skip
    """List the runs of every study for this data."""
    from vitrine.studies.record import hash_of, keys_of

    scale = dataclasses.replace(scale, compiles=True) if compiles else scale
    sets = looked_at(data, target, folder=out / "data")
    prints = {name: found.fingerprint for name, found in sets.items()}
    series = hash_of({"scale": dataclasses.asdict(scale), "data": prints})
    plans = []
    for found in chosen:
        runs = runs_of(found, scale, seeds=seeds, facts=facts_of(sets))
        keys = keys_of(runs, prints)
        command = command_of(found.name, scale, data=data, target=target)
        plans.append(
            Plan(
                study=found, runs=tuple(runs), keys=keys, data=sets, out=out, series=series, command=command
            )
        )  # fmt: skip
    return plans


def command_of(study: str, scale: "Scale", *, data: str, target: str | None) -> str:
    """Return the command that gives these results again, but for the seeds."""
    from vitrine.studies.scales import SCALES

    words = ["vitrine", "study", study, data, "--scale", scale.name]
    if target:
        words += ["--target", target]
    factor = scale.steps / SCALES[scale.name].steps
    if factor != 1:
        words += ["--steps", f"{factor:g}"]
    return shlex.join(words)


def carried_out(
    plans: Sequence[Plan], *, scale: str, jobs: int, device: str, workers: int, rate: float | None
) -> StudyResult:
    """Carry out every run that is not finished, all studies in one pool, and write their pages."""
    from vitrine.runtime.progress import notice
    from vitrine.runtime.turns import alone_at
    from vitrine.studies.running.study_data import make_arrays
    from vitrine.studies.running.study_run import Place
    from vitrine.training.stopping import StoppedError

    with ExitStack() as claimed:
        for plan in plans:
            claim = alone_at(plan.folder, advice="wait for it, or name another folder with --out")
            claimed.enter_context(claim)
        todo = [run for plan in plans for run in plan.unfinished()]
        notice(plan_sentence(plans, todo, jobs=jobs, rate=rate))
        folders = {name_of(run): plan.run_folder(run) for plan in plans for run in plan.runs}
        place = Place(folders=folders, data=plans[0].data, device=device, jobs=jobs)
        notes: list[str] = []
        for name, found in place.data.items():
            sizes = {run.model.image_size[0] for run in todo if run.work == "training" and run.data == name}
            sizes |= {run.model.image_size[0] for run in todo if run.probes and name == "target0"}
            notes += make_arrays(found, sizes, workers=workers)
        try:
            failed = run_all(plans, todo, place, scale=scale, notes=notes)
        except StoppedError:
            raise StoppedError("stopped; everything is saved; the same command goes on from here") from None
        pages = tuple(page_of(plan, notes) for plan in plans)
    return StudyResult(scale=scale, lines=pages, failed=tuple(failed), notes=tuple(notes))


def name_of(run: "Run") -> str:
    """Name a run among those of several studies."""
    return f"{run.study}/{run.name}"


def run_all(
    plans: Sequence[Plan], todo: "Sequence[Run]", place: "Place", *, scale: str, notes: Sequence[str]
) -> list[str]:
    """Carry out runs, write a line for each and a page for each study that is through; return what failed."""
    from vitrine.runtime.progress import announced
    from vitrine.studies.pool import carry_out_all
    from vitrine.studies.results import append_result
    from vitrine.studies.running.study_run import carry_out_run

    plan_of = {plan.study.name: plan for plan in plans}
    left = Counter(run.study for run in todo)
    failed = []
    with announced("Studies", total=len(todo)) as advance:
        for done in carry_out_all(todo, carry_out_run, place, jobs=place.jobs, names=name_of):
            run, plan = done.run, plan_of[done.run.study]
            if done.values is None:
                failed.append(f"{name_of(run)}: {done.reason}")
                # The last line of a traceback says most.
                advance(1, f"{name_of(run)} failed: {done.reason.strip().splitlines()[-1]}")
            else:
                append_result(plan.folder, line_for(run, plan, done.values, scale=scale))
                clear(plan, run)
                shown = ", ".join(f"{key} {value:.4g}" for key, value in done.values["measures"].items())
                advance(1, f"{name_of(run)} {shown}")
            left[run.study] -= 1
            if not left[run.study]:
                page_of(plan, notes)
    return failed


def plan_sentence(plans: Sequence[Plan], todo: "Sequence[Run]", *, jobs: int, rate: float | None) -> str:
    """Say before the first run what will be done."""
    from vitrine.studies.estimate import estimate

    total = sum(len(plan.runs) for plan in plans)
    if not todo:
        return f"All {total} runs are finished"
    speed, source = matmul_rate(rate)
    data = plans[0].data["data"]
    cost = estimate(todo, rate=speed, num_test=data.counts[data.test_split])
    return (
        f"Plan: {len(todo)} of {total} runs are to be done, {cost.exaflops:.3g} exaFLOPs, about "
        f"{duration(cost.seconds(jobs))} with {jobs} side by side. {source}"
    )


def line_for(run: "Run", plan: Plan, values: dict[str, Any], *, scale: str) -> dict[str, Any]:
    """Return the line of a finished run."""
    from vitrine.version import __version__

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
        **values,
    }


def clear(plan: Plan, run: "Run") -> None:
    """Remove a finished run's checkpoints, and all of it where no other run begins with its weights."""
    import shutil

    folder = plan.run_folder(run)
    shutil.rmtree(RunFolder(folder).checkpoints if run.role == "preparation" else folder, ignore_errors=True)


def page_of(plan: Plan, notes: Sequence[str]) -> StudyLine:
    """Write a study's page from its finished runs and say what it shows."""
    from vitrine.errors import MissingExtraError
    from vitrine.runtime.progress import notice
    from vitrine.studies.page import PAGE, judged, write_page

    results = plan.finished()
    page: Path | None = plan.folder / PAGE
    assert page is not None
    try:
        verdict = write_page(page, plan.study, results, notes=notes)
    except MissingExtraError as error:  # results are worth more than their picture
        notice(
            f"No page of {plan.study.name}: {error}; elsewhere: vitrine study page {plan.out} --out studies.md"
        )
        page, (_, verdict) = None, judged(plan.study, results)
    return StudyLine(
        name=plan.study.name,
        where=plan.study.where,
        claim=plan.study.claim,
        runs=len(plan.runs),
        finished=len(results),
        exaflops=sum(result.exaflops for result in results),
        estimated_seconds=0.0,
        verdict=verdict.word,
        findings=tuple(map(str, verdict.findings)),
        page=page,
    )


def matmul_rate(rate: float | None) -> tuple[float, str]:
    """Return operations a second, stated or measured, and where the number comes from."""
    if rate is not None:
        return (
            rate * 1e12,
            f"Time at {rate:g} TFLOP/s, as stated; half of it is what a good training step reaches",
        )
    from vitrine.runtime.rate import measured_matmul_rate

    found, where = measured_matmul_rate("bf16")
    return found, f"Time at {found / 1e12:.3g} TFLOP/s, measured on this {where}; state yours with --rate"
