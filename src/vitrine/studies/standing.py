"""The table of all verdicts: which claims hold at the scale of their runs, and which cannot be tested there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vitrine.spelling import counted
from vitrine.studies.convergence import word_on
from vitrine.studies.record import Study
from vitrine.studies.results import Result, Results
from vitrine.studies.verdicts import Verdict, verdict_of

Standing = Literal["holds", "disputed", "cannot be tested", "open"]
HEADINGS = ("study", "verdict", "where", "training", "seeds", "GPU minutes", "why")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One study on one data set."""

    study: str
    standing: Standing
    why: str
    where: str = "not run"
    training: str = ""
    seeds: int = 0
    gpu_minutes: float = 0.0

    def cells(self) -> tuple[str, ...]:
        """Return what the table shows."""
        minutes = f"{self.gpu_minutes:.1f}" if self.gpu_minutes else ""
        seeds = str(self.seeds) if self.seeds else ""
        return (f"`{self.study}`", self.standing, self.where, self.training, seeds, minutes, self.why)


def row_of(study: Study, results: Sequence[Result]) -> Row:
    """State what the results of a study say about the paper's claim."""
    if not results:
        return Row(study=study.name, standing="open", why=needs(study))
    measured = Results(results, measure=study.measure)
    verdict = verdict_of(study.findings(measured), num_seeds=measured.fewest_seeds())
    standing, why = standing_of(study, measured, verdict)
    last = results[-1]
    return Row(
        study=study.name,
        standing=standing,
        why=why,
        where=f"{last.scale} scale, {last.data}",
        training=word_on(measured) if study.measure != "images_per_second" else "",
        seeds=measured.fewest_seeds(),
        gpu_minutes=gpu_minutes(results),
    )


def standing_of(study: Study, results: Results, verdict: Verdict) -> tuple[Standing, str]:
    """Return the standing of a claim and the reason.

    A claim about large sets is not disputed by small ones: against it, they can only say that they cannot test it.
    """
    if verdict.word == "reproduced":
        return "holds", ""
    if verdict.reservation:
        return "open", verdict.reservation
    against = [finding.says for finding in verdict.findings if finding.state == "opposite"]
    if against:
        largest = max(result.num_images for result in results.all)
        if largest < study.least_images:
            return (
                "cannot be tested",
                f"{needs(study)}; here {largest:,} images, opposite: {'; '.join(against)}",
            )
        return "disputed", f"opposite: {'; '.join(against)}"
    unclear = [finding.says for finding in verdict.findings if finding.state == "open"]
    return "open", f"not clear: {'; '.join(unclear)}" if unclear else "runs are missing"


def needs(study: Study) -> str:
    """Return how much data the claim presumes, if it does."""
    return f"the claim is about pre-training on {study.least_images:,} images" if study.least_images else ""


def gpu_minutes(results: Sequence[Result]) -> float:
    """Return the minutes of a GPU that the runs took: those that shared it at a time divide it."""
    return sum(result.seconds / result.jobs for result in results if result.device != "cpu") / 60


def table_of(rows: Sequence[Row]) -> str:
    """Write the table in Markdown, with the number of each verdict above it."""
    kinds: tuple[Standing, ...] = ("holds", "disputed", "cannot be tested", "open")
    counts = [(sum(row.standing == kind for row in rows), kind) for kind in kinds]
    lines = [
        f"{counted(len(rows), 'verdict')}: {', '.join(f'{count} {kind}' for count, kind in counts)}. A verdict is "
        "about the scale and the data of its row, not about the paper's.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
    ]
    return "\n".join(lines)
