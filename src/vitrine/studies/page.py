"""A study's results as one HTML page, and several studies' as one document for the repository."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from vitrine.reports.pages import render
from vitrine.runtime.files import write_atomically
from vitrine.studies.drawing import draw
from vitrine.studies.record import Study
from vitrine.studies.results import Result, Results, mean_and_spread
from vitrine.studies.verdicts import Verdict, verdict_of

PAGE = "index.html"
BEGIN, END = "<!-- study {name} -->", "<!-- end of {name} -->"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a study's table."""

    label: str
    mean: float
    spread: float | None
    seeds: int
    others: tuple[str, ...]


def judged(study: Study, results: Sequence[Result]) -> tuple[Results, Verdict]:
    """Return a study's results and the verdict that its rule gives."""
    found = Results(results, measure=study.measure)
    return found, verdict_of(study.judge(found))


def write_page(file: Path, study: Study, results: Sequence[Result], *, notes: Sequence[str] = ()) -> Verdict:
    """Write the page of one study."""
    found, verdict = judged(study, results)
    panels = study.panels(found)
    text = render(
        "study.html.j2",
        study=study,
        verdict=verdict,
        # Our own drawing: its text is escaped by matplotlib.
        figure=Markup(draw(panels)),
        num_panels=len(panels),
        rows=rows_of(study, found),
        columns=columns_of(found),
        facts=facts_of(found),
        paper=[panel for panel in panels if panel.is_paper],
        notes=list(notes),
    )
    with write_atomically(file, mode="w") as opened:
        opened.write(text)
    return verdict


def write_document(file: Path, studies: Sequence[tuple[Study, Sequence[Result], str]]) -> None:
    """Put every study's section into a Markdown document between its marks, and its figure beside it.

    What stands outside the marks is left as it is, so that people can write there.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else "# The paper's studies\n"
    for study, results, command in studies:
        figure = file.parent / file.stem / f"{study.name}.svg"
        found, _ = judged(study, results)
        with write_atomically(figure, mode="w") as opened:
            opened.write(draw(study.panels(found)))
        section = section_of(study, results, command=command, figure=f"{file.stem}/{figure.name}")
        begin, end = BEGIN.format(name=study.name), END.format(name=study.name)
        marked = f"{begin}\n{section}\n{end}"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", flags=re.DOTALL)
        if pattern.search(text):
            text = pattern.sub(lambda _, marked=marked: marked, text)  # type: ignore[misc]
        else:
            text = f"{text.rstrip()}\n\n{marked}\n"
    with write_atomically(file, mode="w") as opened:
        opened.write(text)


def section_of(study: Study, results: Sequence[Result], *, command: str, figure: str) -> str:
    """Write one study as Markdown: claim, command, table, verdict, figure."""
    found, verdict = judged(study, results)
    columns = columns_of(found)
    unit = " [%]" if study.measure != "images_per_second" else ""
    lines = [
        f"## {study.title} (`{study.name}`)",
        "",
        f"{study.where}. **Claim:** {study.claim}",
        "",
        f"    {command}",
        "",
        " · ".join(f"{value} {words}" for value, words in facts_of(found)),
        "",
        f"| run | {study.measure.replace('_', ' ')}{unit} | seeds | {' | '.join(columns)} |",
        f"|---|---|---|{'---|' * len(columns)}",
    ]
    for row in rows_of(study, found):
        spread = "" if row.spread is None else f" ± {row.spread:.2f}"
        lines.append(f"| {row.label} | {row.mean:.2f}{spread} | {row.seeds} | {' | '.join(row.others)} |")
    lines += ["", f"![{study.title}]({figure})", "", f"**Verdict: {verdict.word}.**"]
    lines += [f"- {finding}" for finding in verdict.findings]
    lines += ["", f"Rule: {study.rule}"]
    if study.departures:
        lines += ["", f"Departures at small scales: {study.departures}"]
    return "\n".join(lines)


def columns_of(results: Results) -> list[str]:
    """Return the names of the further columns."""
    measured = {name for result in results.measured for name in result.measures}
    extra = ["5-shot [%]"] if "fewshot" in measured and results.measure != "fewshot" else []
    extra += ["test [%]"] if results.measure == "fewshot" else []
    return [*extra, "parameters", "exaFLOPs", "s a run"]


def rows_of(study: Study, results: Results) -> list[Row]:
    """Return one row a group, in the order in which they are listed."""
    factor = 1 if study.measure == "images_per_second" else 100
    rows = []
    for group, members in sorted(results.groups().items(), key=lambda pair: place_of(results, pair[1])):
        values = [factor * m.measures[study.measure] for m in members if study.measure in m.measures]
        if not values:
            continue
        mean, spread = mean_and_spread(values)
        rows.append(
            Row(
                label=label_of(group, members[0]), mean=mean, spread=spread, seeds=len(values),
                others=tuple(others_of(results, members)),
            )
        )  # fmt: skip
    return rows


def place_of(results: Results, members: Sequence[Result]) -> int:
    """Return where a group was met first."""
    return min(results.measured.index(member) for member in members)


def label_of(group: str, result: Result) -> str:
    """Name a group by its settings."""
    shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in result.settings.values()]
    return ", ".join(shown) or group


def others_of(results: Results, members: Sequence[Result]) -> list[str]:
    """Return the further cells of a row."""
    cells = []
    for column in columns_of(results):
        other = {"5-shot [%]": "fewshot", "test [%]": "accuracy"}.get(column)
        if other:
            values = [100 * m.measures[other] for m in members if other in m.measures]
            mean, spread = mean_and_spread(values) if values else (float("nan"), None)
            cells.append(f"{mean:.2f}" + ("" if spread is None else f" ± {spread:.2f}"))
    seconds = sum(member.seconds for member in members) / len(members)
    return [*cells, f"{members[0].params:,}", f"{members[0].exaflops:.3g}", f"{seconds:.1f}"]


def facts_of(results: Results) -> list[tuple[str, str]]:
    """Return what the page says of all runs together."""
    if not results.all:
        return [("0", "finished runs")]
    first = results.all[-1]
    num_seeds = len({result.seed for result in results.all})
    data = ", ".join(dict.fromkeys(result.data for result in results.all))
    return [
        (f"{len(results.all)}", "finished runs"),
        (f"{num_seeds}", "seed" if num_seeds == 1 else "seeds"),
        (first.scale, "scale"),
        (data, "data"),
        (f"{sum(result.exaflops for result in results.all):.3g}", "exaFLOPs"),
        (f"{sum(result.seconds for result in results.all):,.0f} s", "of runs"),
        (first.device, "device"),
    ]
