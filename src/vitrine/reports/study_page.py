"""The page of one study of the paper: claim, verdict with its findings, charts, table of runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.reports.charts import Chart, lay_out_all
from vitrine.reports.pages import render


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One group of runs: its settings, mean and standard deviation over seeds, and further cells."""

    label: str
    mean: float
    spread: float | None
    seeds: int
    others: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A figure of the paper, ours, and the change of each from the first row."""

    label: str
    paper: str
    ours: str
    paper_change: str
    our_change: str


@dataclass(frozen=True, kw_only=True)
class StudyPage:
    """The contents of the page of a study."""

    name: str
    title: str
    where: str
    """Section, table and figure of the paper."""
    claim: str
    rule: str
    verdict: str
    findings: tuple[str, ...]
    reservation: str = ""
    """Why the verdict is open regardless of the findings."""
    holds_for: str = ""
    """Scale and data of the runs."""
    facts: tuple[tuple[str, str], ...]
    """Figures at the top of the page, each with its label."""
    measure: str
    """Heading of the first column of figures."""
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    charts: tuple[Chart, ...]
    published: tuple[PublishedRow, ...] = ()
    published_as: str = ""
    """Table, model and data of the paper's figures."""
    ours_as: str = ""
    """Models, data and steps of ours."""
    departures: str = ""
    notes: Sequence[str] = ()


def render_study(page: StudyPage) -> str:
    """Render the page of a study."""
    return render(
        "study.html.j2",
        page=page,
        charts=lay_out_all(page.charts),
        paper=[chart for chart in page.charts if chart.is_paper],
    )
