"""`vitrine study`: the paper's experiments at any scale, resumably, run by run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_doc import Doc

from vitrine.commands.options import Device

if TYPE_CHECKING:
    from vitrine.commands.study_data import StudyData
    from vitrine.studies.estimate import Estimate
    from vitrine.studies.record import Run, Study
    from vitrine.studies.results import Result

ScaleName = Literal["tiny", "small", "medium", "paper"]
LIST, PAGE = "list", "page"


@dataclass(frozen=True, kw_only=True)
class StudyLine:
    """What is known of a study before or after it."""

    name: str
    where: str
    claim: str
    runs: int
    finished: int
    exaflops: float
    estimated_seconds: float
    verdict: str = ""
    findings: tuple[str, ...] = ()
    page: Path | None = None


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Every study that was asked for."""

    scale: str
    lines: tuple[StudyLine, ...]
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    document: Path | None = None

    @property
    def exit_code(self) -> int:
        """1 where a run failed."""
        return int(bool(self.failed))

    def __str__(self) -> str:
        from vitrine.studies.estimate import shown_seconds

        shown: list[str] = [*self.notes]
        for line in self.lines:
            if line.page is None and self.document is None:
                shown += [
                    f"{line.name} ({line.where})",
                    f"  {line.claim}",
                    f"  scale {self.scale}: {line.runs} runs, {line.exaflops:.3g} exaFLOPs, about "
                    f"{shown_seconds(line.estimated_seconds)}",
                ]
                continue
            shown.append(f"{line.name}: {line.verdict} ({line.finished} of {line.runs} runs)")
            shown += [f"  {finding}" for finding in line.findings]
        shown += [f"Failed: {reason}" for reason in self.failed]
        pages = [str(line.page) for line in self.lines if line.page]
        if self.document:
            shown.append(f"Wrote {self.document}")
        elif pages:
            shown.append(f"Wrote {', '.join(pages)} and results.jsonl beside")
            shown.append(
                "Next: the same command goes on where it stopped; --seeds with one more adds only that one"
            )
        else:
            shown.append("Next: vitrine study NAME DATA --scale small")
        return "\n".join(shown)


def study(
    name: Annotated[
        str,
        Doc(
            "A study, several with commas between, all, list (what there is and costs), or page (a document)."
        ),
    ],
    data: Annotated[str, Doc("Data to train on; for page, the folder that studies were written to.")] = "",
    *,
    scale: Annotated[ScaleName, Doc("How large models, images and schedules are.")] = "small",
    seeds: Annotated[
        int | None, Doc("Seeds, 0 to this less one; by default the study's own two or three.")
    ] = None,
    out: Annotated[Path, Doc("Where to write; for page, the Markdown file.")] = Path("runs/studies"),
    target: Annotated[
        str | None, Doc("Data to transfer to and to draw few shots from; several with commas between.")
    ] = None,
    jobs: Annotated[int, Doc("Runs side by side on the device, each in a process of its own.")] = 1,
    steps: Annotated[float, Doc("Factor on the steps of every run.")] = 1.0,
    compile: Annotated[bool, Doc("Compile every model: worth it for runs of several minutes.")] = False,
    rate: Annotated[
        float | None, Doc("TFLOP/s of the device's matrix products, for the estimate; by default measured.")
    ] = None,
    device: Device = "auto",
    workers: Annotated[int, Doc("How many read image files before the first run.")] = 2,
) -> StudyResult:
    """Run the paper's experiments and judge them by their rules; goes on where it was stopped."""
    from vitrine.errors import ConfigError
    from vitrine.studies import STUDIES, find_studies
    from vitrine.studies.scales import find_scale

    if name == PAGE:
        return write_document(Path(data or "runs/studies"), out)
    chosen = tuple(STUDIES.values()) if name == LIST else find_studies(name)
    size = find_scale(scale, steps=steps)
    for word, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"{word} must be at least 1, got {value}")
    if name == LIST:
        return listed(chosen, size, data=data, target=target, seeds=seeds, jobs=jobs, rate=rate)
    if not data:
        raise ConfigError(
            f"which data? For example: vitrine study {name} cifar10, or generated:shapes?size=32"
        )
    plans = planned(chosen, size, data=data, target=target, seeds=seeds, out=out, compiles=compile)
    return carried_out(plans, scale=scale, jobs=jobs, device=device, workers=workers, rate=rate)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One study, all its runs and the data that they read."""

    study: "Study"
    runs: "tuple[Run, ...]"
    keys: dict[str, str]
    data: "dict[str, StudyData]"
    out: Path

    @property
    def folder(self) -> Path:
        """Where the study's results are."""
        return self.out / self.study.name

    def finished(self) -> "list[Result]":
        """Return the results of these runs that are there already, in the order of the list."""
        from vitrine.studies.results import read_results

        by_key = {result.key: result for result in read_results(self.folder)}
        return [by_key[self.keys[run.name]] for run in self.runs if self.keys[run.name] in by_key]


def listed(
    chosen: "Sequence[Study]", size: Any, *, data: str, target: str | None, seeds: int | None, jobs: int,
    rate: float | None,
) -> StudyResult:  # fmt: skip
    """Say of every study what it claims, how many runs it has and what they cost."""
    from vitrine.studies.record import Setup

    num_classes, num_images, num_test = 10, 50_000, 10_000
    target_classes: tuple[int, ...] = ()
    notes = () if data else ("Costs are for a set like CIFAR-10; give your DATA for its own",)
    if data:
        from vitrine.commands.study_data import look_at

        known = look_at(data, folder=Path())
        num_classes, num_images = len(known.classes), known.counts["train"]
        num_test = known.counts[known.test_split]
        named = [look_at(part, folder=Path()) for part in (target or "").split(",") if part]
        target_classes = tuple(len(part.classes) for part in named)
    speed, source = matmul_rate(rate)
    lines = []
    for found in chosen:
        runs: list[Run] = []
        for seed in range(seeds or found.seeds):
            setup = Setup(
                scale=size, seed=seed, num_classes=num_classes, num_images=num_images,
                target_classes=target_classes,
            )  # fmt: skip
            runs += found.runs(setup)
        lines.append(line_of(found, runs, num_test=num_test, rate=speed, jobs=jobs))
    return StudyResult(scale=size.name, lines=tuple(lines), notes=(*notes, source))


def line_of(found: "Study", runs: "Sequence[Run]", *, num_test: int, rate: float, jobs: int) -> StudyLine:
    """Describe a study before it starts."""
    from vitrine.studies.estimate import estimate

    cost = estimate(runs, rate=rate, num_test=num_test)
    return StudyLine(
        name=found.name,
        where=found.where,
        claim=found.claim,
        runs=len(runs),
        finished=0,
        exaflops=cost.exaflops,
        estimated_seconds=cost.seconds(jobs),
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


def planned(
    chosen: "Sequence[Study]", size: Any, *, data: str, target: str | None, seeds: int | None, out: Path,
    compiles: bool,
) -> list[Plan]:  # fmt: skip
    """List the runs of every study for this data."""
    import dataclasses

    from vitrine.commands.study_data import look_at
    from vitrine.studies.record import Setup, in_order, keys_of

    size = dataclasses.replace(size, compiles=True) if compiles else size
    sets = {"data": look_at(data, folder=out / "data")}
    for number, part in enumerate(part for part in (target or "").split(",") if part):
        sets[f"target{number}"] = look_at(part, folder=out / "data")
    own = sets["data"]
    prints = {name: found.fingerprint for name, found in sets.items()}
    plans = []
    for found in chosen:
        runs: list[Run] = []
        for seed in range(seeds or found.seeds):
            setup = Setup(
                scale=size, seed=seed, num_classes=len(own.classes), num_images=own.counts["train"],
                target_classes=tuple(len(part.classes) for name, part in sets.items() if name != "data"),
            )  # fmt: skip
            runs += found.runs(setup)
        plans.append(
            Plan(study=found, runs=tuple(in_order(runs)), keys=keys_of(runs, prints), data=sets, out=out)
        )
    return plans


def carried_out(
    plans: Sequence[Plan], *, scale: str, jobs: int, device: str, workers: int, rate: float | None
) -> StudyResult:
    """Carry out every run that is not finished, all studies in one pool, and write their pages."""
    from vitrine.commands.study_data import make_arrays
    from vitrine.commands.study_run import Place, carry_out_run
    from vitrine.runtime.progress import announced, remark
    from vitrine.studies.pool import carry_out_all
    from vitrine.studies.results import append_result

    plan_of = {plan.study.name: plan for plan in plans}
    todo = []
    for plan in plans:
        done = {result.key for result in plan.finished()}
        todo += [run for run in plan.runs if plan.keys[run.name] not in done]
    remark(plan_sentence(plans, todo, jobs=jobs, rate=rate))
    place = Place(out=plans[0].out, data=plans[0].data, device=device, jobs=jobs)
    notes: list[str] = []
    for name, found in place.data.items():
        sizes = {run.model.image_size[0] for run in todo if run.work == "training" and run.data == name}
        sizes |= {run.model.image_size[0] for run in todo if run.probes and name == "target0"}
        notes += make_arrays(found, sizes, workers=workers)
    failed = []
    with announced("Studies", total=len(todo)) as advance:
        for done_run in carry_out_all(
            todo, carry_out_run, place, jobs=jobs, names=lambda run: f"{run.study}/{run.name}"
        ):
            run, plan = done_run.run, plan_of[done_run.run.study]
            if done_run.values is None:
                failed.append(f"{run.study}/{run.name}: {done_run.reason}")
                advance(1, f"{run.study}/{run.name} failed")
                continue
            append_result(plan.folder, line_for(run, plan, done_run.values, scale=scale))
            clear(plan, run)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in done_run.values["measures"].items())
            advance(1, f"{run.study}/{run.name} {shown}")
    return StudyResult(
        scale=scale, lines=tuple(page_of(plan, notes) for plan in plans), failed=tuple(failed),
        notes=tuple(notes),
    )  # fmt: skip


def plan_sentence(plans: Sequence[Plan], todo: "Sequence[Run]", *, jobs: int, rate: float | None) -> str:
    """Say before the first run what will be done."""
    from vitrine.studies.estimate import estimate, shown_seconds

    total = sum(len(plan.runs) for plan in plans)
    if not todo:
        return f"All {total} runs are finished"
    speed, source = matmul_rate(rate)
    data = plans[0].data["data"]
    cost: Estimate = estimate(todo, rate=speed, num_test=data.counts[data.test_split])
    return (
        f"Plan: {len(todo)} of {total} runs are to be done, {cost.exaflops:.3g} exaFLOPs, about "
        f"{shown_seconds(cost.seconds(jobs))} with {jobs} side by side. {source}"
    )


def line_for(run: "Run", plan: Plan, values: dict[str, Any], *, scale: str) -> dict[str, Any]:
    """Return the line of a finished run."""
    from vitrine.version import __version__

    data = plan.data[run.data]
    return {
        "study": run.study,
        "run": run.name,
        "key": plan.keys[run.name],
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
    """Remove a finished run's checkpoints where no other run begins with them."""
    import shutil

    from vitrine.commands.study_run import run_folder

    if not any(other.after == run.name for other in plan.runs):
        shutil.rmtree(run_folder(plan.out, run), ignore_errors=True)


def page_of(plan: Plan, notes: Sequence[str]) -> StudyLine:
    """Write a study's page from its finished runs and say what it shows."""
    from vitrine.studies.page import write_page

    results = plan.finished()
    page = plan.folder / "index.html"
    verdict = write_page(page, plan.study, results, notes=notes)
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


def write_document(folder: Path, file: Path) -> StudyResult:
    """Write the document of every study that has results below a folder."""
    from vitrine.errors import ConfigError
    from vitrine.studies import STUDIES
    from vitrine.studies.page import judged
    from vitrine.studies.page import write_document as write
    from vitrine.studies.results import read_results

    if file.suffix != ".md":
        raise ConfigError(f"page writes a Markdown file, got {file}; for example --out docs/studies.md")
    sections, lines = [], []
    for found in STUDIES.values():
        results = read_results(folder / found.name)
        if not results:
            continue
        first = results[-1]
        seeds = len({result.seed for result in results})
        command = f"vitrine study {found.name} {first.data} --scale {first.scale} --seeds {seeds}"
        sections.append((found, results, command))
        _, verdict = judged(found, results)
        lines.append(
            StudyLine(
                name=found.name, where=found.where, claim=found.claim, runs=len(results), finished=len(results),
                exaflops=sum(result.exaflops for result in results), estimated_seconds=0.0, verdict=verdict.word,
                findings=tuple(map(str, verdict.findings)),
            )
        )  # fmt: skip
    if not sections:
        raise ConfigError(
            f"{folder} holds no results of a study; run one with: vitrine study NAME DATA --out {folder}"
        )
    write(file, sections)
    return StudyResult(scale=sections[0][1][0].scale, lines=tuple(lines), document=file)
