"""The page of a run: curves, verdict, confusion, mistakes with their attention, calibration, data, cost, command."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.evaluation.classification import MultiLabel, SingleLabel
from vitrine.evaluation.scoring import SplitScore
from vitrine.reports.curves import HEIGHT, WIDTH, charts_of
from vitrine.reports.evaluation_page import bars_of, cards_of, confused_pairs, matrix_cells, worst_classes
from vitrine.reports.pages import render
from vitrine.reports.run_account import RunAccount
from vitrine.spelling import printable

MOST_MISTAKES = 12
MOST_WORST = 12
MOST_ISSUES = 60
CARD_SIDE = 192
Attention = Callable[[NDArray[np.int64]], Sequence[str | None] | None]
"""From the numbers of some images to pictures of where the model looked, as data addresses."""


def render_run(
    account: RunAccount,
    *,
    score: SplitScore | None = None,
    interval: tuple[float, float] | None = None,
    attention: Attention | None = None,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """Make the page from a run's records and, where the model could be score, from what it answered.

    `interval` is the 95 % interval of the accuracy, `facts` are (figure, words) for the top of the page.
    """
    values: dict[str, Any] = {
        "account": account,
        "name": printable(account.folder.name),
        "address": printable(str(account.run.get("data", ""))),
        "charts": charts_of(account.records),
        "chart_size": (WIDTH, HEIGHT),
        "score": score,
        "interval": interval,
        "facts": facts,
        "notes": notes,
        "set_aside": [printable(name) for name in account.data.get("set_aside", ())],
        "issues": _issues(account),
        "num_issues": len(account.data.get("issues", ())),
        "single": None,
        "ranked": [],
    }
    if score is None:
        return render("run.html.j2", **values)
    if isinstance(score.figures, MultiLabel):
        return render("run.html.j2", **values | {"ranked": score.worst_classes[:MOST_WORST]})
    return render("run.html.j2", **values | {"single": _single(score, score.figures, attention)})


def _single(score: SplitScore, figures: SingleLabel, attention: Attention | None) -> dict[str, Any]:
    mistaken = score.mistaken
    chosen = mistaken[:MOST_MISTAKES]
    seen = attention(chosen) if attention is not None and len(chosen) else None
    return {
        "figures": figures,
        "worst": worst_classes(figures)[:MOST_WORST],
        "matrix": matrix_cells(figures),
        "pairs": confused_pairs(figures),
        "bins": bars_of(figures),
        "mistakes": cards_of(
            score.source,
            chosen,
            score.probabilities[chosen],
            score.source.labels[chosen],
            attention=seen,
            side=CARD_SIDE,
        ),
        "num_mistakes": len(mistaken),
        "has_attention": bool(seen and any(seen)),
    }


def _issues(account: RunAccount) -> list[dict[str, str]]:
    found = account.data.get("issues", ())[:MOST_ISSUES]
    return [{name: printable(str(issue[name])) for name in ("path", "problem", "detail")} for issue in found]
