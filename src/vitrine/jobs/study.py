"""The work behind `vitrine study`: list the studies, run them, or write their document."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from vitrine.errors import ConfigError
from vitrine.studies import STUDIES, find_studies
from vitrine.studies.estimate import estimate
from vitrine.studies.page import PAGE as INDEX
from vitrine.studies.page import write_document as write
from vitrine.studies.page import write_page
from vitrine.studies.record import Run, Study
from vitrine.studies.results import latest_series, read_results
from vitrine.studies.running.study_outcome import StudyLine, StudyResult
from vitrine.studies.running.study_plan import (
    Facts,
    carried_out,
    facts_of,
    looked_at,
    matmul_rate,
    planned,
    runs_of,
)
from vitrine.studies.scales import Scale, find_scale

LIST, PAGE = "list", "page"


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

    if name == PAGE:
        return write_document(Path(data or "runs/studies"), out)
    chosen = tuple(STUDIES.values()) if name == LIST else find_studies(name)
    size = find_scale(scale, steps=steps)
    size = dataclasses.replace(size, graphs=size.graphs and uses_graphs)
    for word, value in (("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"{word} must be at least 1, got {value}")
    if name == LIST:
        return listed(chosen, size, data=data, target=target, seeds=seeds, jobs=jobs, rate=rate)
    if not data:
        raise ConfigError(
            f"which data? For example: vitrine study {name} cifar10, or generated:shapes?size=32"
        )
    plans = planned(chosen, size, data=data, target=target, seeds=seeds, out=out, compiles=compiles)
    return carried_out(plans, scale=scale, jobs=jobs, device=device, workers=workers, rate=rate)


def listed(
    chosen: Sequence[Study], scale: Scale, *, data: str, target: str | None, seeds: int | None, jobs: int,
    rate: float | None,
) -> StudyResult:  # fmt: skip
    """Say of every study what it claims, how many runs it has and what they cost."""

    facts = Facts(num_classes=10, num_images=50_000, num_test=10_000)
    notes = () if data else ("Costs are for a set like CIFAR-10; give your DATA for its own",)
    if data:
        facts = facts_of(looked_at(data, target, folder=Path()))
    speed, source = matmul_rate(rate)
    lines = []
    for found in chosen:
        runs = runs_of(found, scale, seeds=seeds, facts=facts)
        lines.append(line_of(found, runs, num_test=facts.num_test, rate=speed, jobs=jobs))
    return StudyResult(scale=scale.name, lines=tuple(lines), notes=(*notes, source))


def line_of(found: Study, runs: Sequence[Run], *, num_test: int, rate: float, jobs: int) -> StudyLine:
    """Describe a study before it starts."""

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


def write_document(folder: Path, file: Path) -> StudyResult:
    """Write the document, and the page, of every study that has results below a folder."""

    if file.suffix != ".md":
        raise ConfigError(f"page writes a Markdown file, got {file}; for example --out docs/studies.md")
    sections, lines = [], []
    for found in STUDIES.values():
        results = read_results(folder / found.name)
        if not results:
            continue
        results = latest_series(results)
        seeds = len({result.seed for result in results})
        command = f"{results[-1].command} --seeds {seeds}"
        sections.append((found, results, command))
        page = folder / found.name / INDEX
        verdict = write_page(page, found, results)
        lines.append(
            StudyLine(
                name=found.name, where=found.where, claim=found.claim, runs=len(results), finished=len(results),
                exaflops=sum(result.exaflops for result in results), estimated_seconds=0.0, verdict=verdict.word,
                findings=tuple(map(str, verdict.findings)), page=page,
            )
        )  # fmt: skip
    if not sections:
        raise ConfigError(
            f"{folder} holds no results of a study; run one with: vitrine study NAME DATA --out {folder}"
        )
    write(file, sections)
    return StudyResult(scale=sections[0][1][0].scale, lines=tuple(lines), document=file)
