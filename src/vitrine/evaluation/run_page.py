"""The page of a run: curves, verdict, confusion, mistakes with their attention, calibration, data, cost, command."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.source import Source
from vitrine.evaluation.calibration import softmax
from vitrine.evaluation.classification import MultiLabel, SingleLabel, score_multi_label, score_single_label
from vitrine.evaluation.curves import HEIGHT, WIDTH, charts_of
from vitrine.evaluation.outputs import Outputs
from vitrine.evaluation.pages import (
    bars_of,
    cards_of,
    confident_mistakes,
    confused_pairs,
    matrix_cells,
    render,
    worst_classes,
)
from vitrine.evaluation.run_account import RunAccount
from vitrine.spelling import printable

MOST_MISTAKES = 12
MOST_WORST = 12
MOST_ISSUES = 60
CARD_SIDE = 192
Attention = Callable[[NDArray[np.int64]], Sequence[str | None] | None]
"""From the numbers of some images to pictures of where the model looked, as data addresses."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A trained model's outputs on the split that it is judged by, and the figures that follow from them."""

    source: Source
    split: str
    outputs: Outputs
    figures: SingleLabel | MultiLabel

    @property
    def accuracy(self) -> float | None:
        """Share of the images that are named right; None with several labels an image."""
        return self.figures.top1.value if isinstance(self.figures, SingleLabel) else None

    @property
    def worst(self) -> list[tuple[str, float]]:
        """Classes with the lowest F1 or average precision, the worst first."""
        if isinstance(self.figures, SingleLabel):
            pairs = [(figure.name, figure.f1) for figure in self.figures.per_class if figure.num_images]
        else:
            pairs = list(self.figures.average_precision.items())
        return sorted(((printable(n), v) for n, v in pairs if v is not None), key=lambda item: item[1])


def judge(outputs: Outputs, source: Source, *, split: str) -> Judged:
    """Work out the figures of a model from its logits on a labelled split."""
    keep = outputs.readable
    logits, labels = outputs.rows.numpy()[keep], source.labels[keep]
    score = score_multi_label if source.is_multi_label else score_single_label
    return Judged(
        source=source, split=split, outputs=outputs, figures=score(logits, labels, classes=source.classes)
    )


def render_run(
    account: RunAccount,
    *,
    judged: Judged | None = None,
    interval: tuple[float, float] | None = None,
    attention: Attention | None = None,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """Make the page from a run's records and, where the model could be judged, from what it answered.

    `interval` is the 95 % interval of the accuracy, `facts` are (figure, words) for the top of the page.
    """
    values: dict[str, Any] = {
        "account": account,
        "name": printable(account.folder.name),
        "address": printable(str(account.run.get("data", ""))),
        "charts": charts_of(account.records),
        "chart_size": (WIDTH, HEIGHT),
        "judged": judged,
        "interval": interval,
        "facts": facts,
        "notes": notes,
        "set_aside": [printable(name) for name in account.data.get("set_aside", ())],
        "issues": _issues(account),
        "num_issues": len(account.data.get("issues", ())),
        "single": None,
        "ranked": [],
    }
    if judged is None:
        return render("run.html.j2", **values)
    if isinstance(judged.figures, MultiLabel):
        return render("run.html.j2", **values | {"ranked": judged.worst[:MOST_WORST]})
    return render("run.html.j2", **values | {"single": _single(judged, judged.figures, attention)})


def _single(judged: Judged, figures: SingleLabel, attention: Attention | None) -> dict[str, Any]:
    readable = np.flatnonzero(judged.outputs.readable)
    rows = softmax(judged.outputs.rows.numpy()[readable])
    labels = judged.source.labels[readable]
    all_mistakes = confident_mistakes(rows, labels)
    chosen = all_mistakes[:MOST_MISTAKES]
    seen = attention(readable[chosen]) if attention is not None and len(chosen) else None
    return {
        "figures": figures,
        "worst": worst_classes(figures)[:MOST_WORST],
        "matrix": matrix_cells(figures),
        "pairs": confused_pairs(figures),
        "bins": bars_of(figures),
        "mistakes": cards_of(
            judged.source, readable[chosen], rows[chosen], labels[chosen], attention=seen, side=CARD_SIDE
        ),
        "num_mistakes": len(all_mistakes),
        "has_attention": bool(seen and any(seen)),
    }


def _issues(account: RunAccount) -> list[dict[str, str]]:
    found = account.data.get("issues", ())[:MOST_ISSUES]
    return [{name: printable(str(issue[name])) for name in ("path", "problem", "detail")} for issue in found]
