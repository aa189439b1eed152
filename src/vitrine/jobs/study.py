"""The work behind `vitrine study`: list the studies, run them, or write their document."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrine.errors import ConfigError, TryVerb
from vitrine.runtime.result import Result
from vitrine.studies.estimate import estimate
from vitrine.studies.execution import MatmulRate, execute_plans, matmul_rate
from vitrine.studies.planning import (
    PAGE,
    DataFacts,
    Plan,
    describe_all,
    facts_of,
    make_plans,
    runs_of,
)
from vitrine.studies.record import Study
from vitrine.studies.registry import STUDIES, find_studies
from vitrine.studies.reporting import Section, verdict_on, write_document, write_study_page
from vitrine.studies.results import Result as RunResult
from vitrine.studies.results import latest_series, read_results
from vitrine.studies.scales import Scale, find_scale

LIST_WORD, PAGE_WORD = "list", "page"
DEFAULT_OUT = Path("runs/studies")
CIFAR_LIKE = DataFacts(num_classes=10, num_images=50_000, num_test=10_000)


@dataclass(frozen=True, kw_only=True)
class StudyLine:
    """One study: its cost before it runs, its verdict afterwards."""

    name: str
    where: str
    claim: str
    runs: int
    finished: int
    exaflops: float
    estimated_seconds: float
    verdict: str = ""
    """Empty where nothing has run."""
    findings: tuple[str, ...] = ()
    page: Path | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyResult(Result):
    """Every study that was asked for."""

    scale: str
    lines: tuple[StudyLine, ...]
    failed: tuple[str, ...] = ()
    """Runs that failed, each with the reason."""
    notes: tuple[str, ...] = ()
    document: Path | None = None
    rate: MatmulRate | None = None
    """Basis of the estimated seconds."""
    is_for_cifar: bool = False
    """Whether the costs are those of a set like CIFAR-10, as no data was given."""

    @property
    def exit_code(self) -> int:
        """1 if a run failed."""
        return int(bool(self.failed))


def run_studies(
    name: str,
    data: str,
    *,
    scale: str,
    seeds: int | None,
    out: Path,
    target: str | None,
    jobs: int,
    steps: float,
    compiles: bool,
    uses_graphs: bool,
    rate: float | None,
    device: str,
    workers: int,
) -> StudyResult:
    """Run the named studies on `data` and apply their rules; finished runs in `out` are not repeated."""
    if name == PAGE_WORD:
        return write_studies(Path(data) if data else DEFAULT_OUT, out)
    studies = tuple(STUDIES.values()) if name == LIST_WORD else find_studies(name)
    size = find_scale(scale, steps=steps)
    size = dataclasses.replace(size, graphs=size.graphs and uses_graphs)
    for option, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"must be at least 1, got {value}", option=option)
    if name == LIST_WORD:
        return list_studies(studies, size, data=data, target=target, seeds=seeds, jobs=jobs, rate=rate)
    if not data:
        raise ConfigError(
            "must name the data to train on",
            option="data",
            advice=[
                TryVerb("study", (name, "cifar10")),
                TryVerb("study", (name, "generated:shapes?size=32")),
            ],
        )
    plans = make_plans(studies, size, data=data, target=target, seeds=seeds, out=out, compiles=compiles)
    outcome = execute_plans(plans, scale=scale, jobs=jobs, device=device, workers=workers, rate=rate)
    lines = tuple(_finished_line(plan) for plan in outcome.plans)
    return StudyResult(scale=scale, lines=lines, failed=outcome.failed, notes=outcome.notes)


def list_studies(
    studies: Sequence[Study],
    scale: Scale,
    *,
    data: str,
    target: str | None,
    seeds: int | None,
    jobs: int,
    rate: float | None,
) -> StudyResult:
    """Return every study's claim, number of runs and cost; no image is read."""
    facts = facts_of(describe_all(data, target, folder=Path())) if data else CIFAR_LIKE
    speed = matmul_rate(rate)
    lines = []
    for study in studies:
        runs = runs_of(study, scale, seeds=seeds, facts=facts)
        cost = estimate(runs, rate=speed.flops_per_second, num_test=facts.num_test)
        lines.append(
            StudyLine(
                name=study.name,
                where=study.where,
                claim=study.claim,
                runs=len(runs),
                finished=0,
                exaflops=cost.exaflops,
                estimated_seconds=cost.seconds(jobs),
            )
        )
    return StudyResult(scale=scale.name, lines=tuple(lines), rate=speed, is_for_cifar=not data)


def write_studies(folder: Path, file: Path) -> StudyResult:
    """Write the document, and the page, of every study that has results below a folder."""
    if file.suffix != ".md":
        raise ConfigError(f"must be a Markdown file such as docs/studies.md, got {file}", option="out")
    sections, lines = [], []
    for study in STUDIES.values():
        results = read_results(folder / study.name)
        if not results:
            continue
        series = latest_series(results)
        for data, part in series.items():
            seeds = len({result.seed for result in part})
            on = data if len(series) > 1 else ""
            sections.append(Section(study, part, command=f"{part[-1].command} --seeds {seeds}", on=on))
            page = folder / study.name / (f"{data}.html" if on else PAGE)
            write_study_page(page, study, part)
            lines.append(_line(study, part, num_runs=len(part), page=page))
    if not sections:
        raise ConfigError(
            f"{folder} holds no results of a study",
            advice=[TryVerb("study", ("NAME", "DATA"), "to run one", {"out": str(folder)})],
        )
    write_document(file, sections, studies=tuple(STUDIES.values()))
    return StudyResult(scale=sections[0].results[0].scale, lines=tuple(lines), document=file)


def _finished_line(plan: Plan) -> StudyLine:
    return _line(plan.study, plan.finished(), num_runs=plan.num_expected, page=plan.folder / plan.page)


def _line(study: Study, results: Sequence[RunResult], *, num_runs: int, page: Path) -> StudyLine:
    _, verdict = verdict_on(study, results)
    return StudyLine(
        name=study.name,
        where=study.where,
        claim=study.claim,
        runs=num_runs,
        finished=len(results),
        exaflops=sum(result.exaflops for result in results),
        estimated_seconds=0.0,
        verdict=verdict.word,
        findings=tuple(map(str, verdict.findings)),
        page=page,
    )
