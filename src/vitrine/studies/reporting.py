"""A study's results as one HTML page, and several studies as one Markdown document for the repository."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrine.reports.charts import svg_file
from vitrine.reports.pages import write_page
from vitrine.reports.study_page import PublishedRow, StudyPage, TableRow, render_study
from vitrine.runtime.files import write_atomically
from vitrine.spelling import counted
from vitrine.studies.convergence import convergence_of, word_on
from vitrine.studies.record import Study
from vitrine.studies.results import Result, Results, mean_and_spread
from vitrine.studies.standing import row_of, table_of
from vitrine.studies.verdicts import Verdict, verdict_of

BEGIN, END = "<!-- study {name} -->", "<!-- end of {name} -->"
SPEED = "images_per_second"
VERDICTS = ("<!-- verdicts -->", "<!-- end of verdicts -->")


@dataclass(frozen=True)
class Section:
    """The results of one study on one data set, as a section of a document."""

    study: Study
    results: Sequence[Result]
    command: str
    on: str = ""
    """The data set, if a document has the same study on several."""

    @property
    def name(self) -> str:
        """The identity of a section: the study, and the data set if there are several."""
        return f"{self.study.name}-{self.on}" if self.on else self.study.name


def remarks_on(study: Study, results: Results) -> list[str]:
    """Return the notes beside the verdict: the study's remarks, and runs without recorded steps."""
    launched = [result for result in results.all if result.launched]
    said = list(study.remarks(results)) if study.remarks is not None and results.all else []
    if study.measure != SPEED and results.all:
        convergence = convergence_of(results)
        said.append(
            f"{convergence}."
            if convergence
            else "Whether longer training changes the result was not measured."
        )
    if launched:
        said.append(f"{counted(len(launched), 'run')} launched every kernel: {launched[0].launched}.")
    return said


def verdict_on(study: Study, results: Sequence[Result]) -> tuple[Results, Verdict]:
    """Return a study's results and the verdict that its rule gives."""
    measured = Results(results, measure=study.measure)
    return measured, verdict_of(study.findings(measured), num_seeds=measured.fewest_seeds())


def page_of(study: Study, results: Sequence[Result], *, notes: Sequence[str] = ()) -> StudyPage:
    """Collect what the page of a study shows."""
    measured, verdict = verdict_on(study, results)
    return StudyPage(
        name=study.name,
        title=study.title,
        where=study.where,
        claim=study.claim,
        rule=study.rule,
        verdict=verdict.word,
        reservation=verdict.reservation,
        findings=tuple(map(str, verdict.findings)),
        holds_for=scope_of(measured),
        facts=tuple(facts_of(measured)),
        measure=study.measure.replace("_", " ") + ("" if study.measure == SPEED else " [%]"),
        columns=tuple(columns_of(measured)),
        rows=tuple(rows_of(study, measured)),
        charts=tuple(study.charts(measured)),
        published=tuple(published_rows(study, measured)),
        published_as=study.published_as,
        ours_as=ours_as(measured),
        departures=study.departures,
        notes=(*remarks_on(study, measured), *notes),
    )


def write_study_page(
    file: Path, study: Study, results: Sequence[Result], *, notes: Sequence[str] = ()
) -> Verdict:
    """Write the page of one study and return its verdict."""
    write_page(file, render_study(page_of(study, results, notes=notes)))
    return verdict_on(study, results)[1]


def write_document(file: Path, sections: Sequence[Section], *, studies: Sequence[Study] = ()) -> None:
    """Write every study's section into a Markdown document between its marks, and its charts beside it.

    With `studies`, the table of their verdicts is written too, below the title if it has no marks yet. Text outside
    the marks is kept.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else "# The paper's studies\n"
    if studies:
        begin, end = VERDICTS
        table = f"{begin}\n{verdict_table(studies, sections)}\n{end}"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", flags=re.DOTALL)
        title, _, rest = text.partition("\n")
        text = pattern.sub(lambda _: table, text) if begin in text else f"{title}\n\n{table}\n{rest}"
    for one in sections:
        figure = file.parent / file.stem / f"{one.name}.svg"
        page = page_of(one.study, one.results)
        with write_atomically(figure, mode="w") as opened:
            opened.write(svg_file(page.charts))
        section = section_of(page, command=one.command, figure=f"{file.stem}/{figure.name}", on=one.on)
        begin, end = BEGIN.format(name=one.name), END.format(name=one.name)
        marked = f"{begin}\n{section}\n{end}"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", flags=re.DOTALL)
        if pattern.search(text):
            text = pattern.sub(lambda _, marked=marked: marked, text)  # type: ignore[misc]
        else:
            text = f"{text.rstrip()}\n\n{marked}\n"
    with write_atomically(file, mode="w") as opened:
        opened.write(text)


def verdict_table(studies: Sequence[Study], sections: Sequence[Section]) -> str:
    """Write the table of all verdicts: a row per section, and one per study that was not run."""
    rows = []
    for study in studies:
        own = [section for section in sections if section.study.name == study.name]
        rows += [row_of(study, section.results) for section in own] or [row_of(study, ())]
    return table_of(rows)


def published_rows(study: Study, results: Results) -> list[PublishedRow]:
    """Return the figures of the paper beside ours, with the changes from the first row of each."""
    if study.published is None:
        return []
    rows: list[PublishedRow] = []
    first: tuple[float, float] | None = None
    for one in study.published(results):
        if not one.ours:
            continue
        mean, spread = mean_and_spread([100 * value for value in one.ours])
        changes = ("", "") if first is None else (f"{one.paper - first[0]:+.2f}", f"{mean - first[1]:+.2f}")
        first = first or (one.paper, mean)
        ours = f"{mean:.2f}" + ("" if spread is None else f" ± {spread:.2f}")
        rows.append(
            PublishedRow(
                label=one.label, paper=f"{one.paper:.2f}", ours=ours, paper_change=changes[0],
                our_change=changes[1],
            )
        )  # fmt: skip
    return rows


def published_table(page: StudyPage) -> list[str]:
    """Write the figures of the paper beside ours in Markdown."""
    return [
        "",
        f"The paper: {page.published_as}. Ours: {page.ours_as}.",
        "",
        "| arm | the paper [%] | ours [%] | the paper, change from the first | ours |",
        "|---|---|---|---|---|",
        *(
            f"| {row.label} | {row.paper} | {row.ours} | {row.paper_change} | {row.our_change} |"
            for row in page.published
        ),
    ]


def ours_as(results: Results) -> str:
    """Return the models, the data and the steps of the measured runs."""
    if not results.measured:
        return ""
    sizes = [result.params / 1e6 for result in results.measured]
    steps, last = max(result.steps for result in results.measured), results.measured[-1]
    models = f"{min(sizes):.1f}" + ("" if max(sizes) - min(sizes) < 0.05 else f" to {max(sizes):.1f}")
    return f"models of {models} M parameters on {last.data}, {last.scale} scale, up to {steps:,} steps"


def section_of(page: StudyPage, *, command: str, figure: str, on: str = "") -> str:
    """Write one study as Markdown: claim, command, table, charts, verdict."""
    lines = [
        f"## {page.title}{f', on {on}' if on else ''} (`{page.name}`)",
        "",
        f"{page.where}. **Claim:** {page.claim}",
        "",
        f"    {command}",
        "",
        " · ".join(f"{value} {words}" for value, words in page.facts),
        "",
        f"| run | {page.measure} | seeds | {' | '.join(page.columns)} |",
        f"|---|---|---|{'---|' * len(page.columns)}",
    ]
    for row in page.rows:
        spread = "" if row.spread is None else f" ± {row.spread:.2f}"
        lines.append(f"| {row.label} | {row.mean:.2f}{spread} | {row.seeds} | {' | '.join(row.others)} |")
    lines += ["", f"![{page.title}]({figure})", "", f"**Verdict: {page.verdict}{reserved(page)}.**"]
    lines += [f"- {finding}" for finding in page.findings]
    lines += ["", *page.notes] if page.notes else []
    lines += published_table(page) if page.published else []
    lines += ["", f"Rule: {page.rule}"]
    if page.departures:
        lines += ["", f"Departures at small scales: {page.departures}"]
    return "\n".join(lines)


def reserved(page: StudyPage) -> str:
    """Return in brackets the scale and data that the verdict holds for, and the reason why it is open, if any."""
    said = [part for part in (page.reservation, page.holds_for) if part]
    return f" ({'; '.join(said)})" if said else ""


def columns_of(results: Results) -> list[str]:
    """Return the headings of the further columns."""
    measured = {name for result in results.measured for name in result.measures}
    extra = ["5-shot [%]"] if "fewshot" in measured and results.measure != "fewshot" else []
    extra += ["test [%]"] if results.measure == "fewshot" else []
    return [*extra, "parameters", "exaFLOPs", "s per run"]


def rows_of(study: Study, results: Results) -> list[TableRow]:
    """Return one row per group, in the order in which groups are listed."""
    factor = 1 if study.measure == SPEED else 100
    rows = []
    for group, members in sorted(results.groups().items(), key=lambda pair: _first_place(results, pair[1])):
        values = [factor * m.measures[study.measure] for m in members if study.measure in m.measures]
        if not values:
            continue
        mean, spread = mean_and_spread(values)
        rows.append(
            TableRow(
                label=_label(group, members[0]),
                mean=mean,
                spread=spread,
                seeds=len(values),
                others=tuple(_other_cells(results, members)),
            )
        )
    return rows


def scope_of(results: Results) -> str:
    """State the scale and the data that a verdict holds for, and whether the runs are long enough."""
    if not results.all:
        return ""
    last, word = results.all[-1], word_on(results)
    length = "" if results.measure == SPEED else f", {'convergence ' if word == 'not checked' else ''}{word}"
    return f"at {last.scale} scale on {last.data}{length}"


def facts_of(results: Results) -> list[tuple[str, str]]:
    """Return the totals over all runs, each with its label."""
    if not results.all:
        return [("0", "finished runs")]
    last = results.all[-1]
    num_seeds = len({result.seed for result in results.all})
    data = ", ".join(dict.fromkeys(result.data for result in results.all))
    return [
        (f"{len(results.all)}", "finished runs"),
        (f"{num_seeds}", "seed" if num_seeds == 1 else "seeds"),
        (last.scale, "scale"),
        (data, "data"),
        (f"{sum(result.exaflops for result in results.all):.3g}", "exaFLOPs"),
        (f"{sum(result.seconds for result in results.all):,.0f} s", "of runs"),
        (last.device, "device"),
    ]


def _first_place(results: Results, members: Sequence[Result]) -> int:
    return min(results.measured.index(member) for member in members)


def _label(group: str, result: Result) -> str:
    """Name a group by its settings."""
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in result.settings.values()]
    return ", ".join(shown) or group


def _other_cells(results: Results, members: Sequence[Result]) -> list[str]:
    cells = []
    for column in columns_of(results):
        other = {"5-shot [%]": "fewshot", "test [%]": "accuracy"}.get(column)
        if other:
            values = [100 * m.measures[other] for m in members if other in m.measures]
            mean, spread = mean_and_spread(values) if values else (float("nan"), None)
            cells.append(f"{mean:.2f}" + ("" if spread is None else f" ± {spread:.2f}"))
    seconds = sum(member.seconds for member in members) / len(members)
    return [*cells, f"{members[0].params:,}", f"{members[0].exaflops:.3g}", f"{seconds:.1f}"]
