"""The page of a run: score, curves, mistakes with attention, confusion matrix, calibration, data, command."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.auditing.issues import are_uneven
from vitrine.evaluation.classification import MultiLabel, SingleLabel
from vitrine.evaluation.evaluators import majority_accuracy
from vitrine.evaluation.scoring import SplitScore
from vitrine.reports.charts import Chart, Point, lay_out_all
from vitrine.reports.evaluation_page import (
    cards_of,
    claim_words,
    confused_pairs,
    matrix_cells,
    reliability_bars,
    worst_classes,
)
from vitrine.reports.pages import render
from vitrine.reports.run_account import RunAccount
from vitrine.spelling import printable

MOST_MISTAKES = 12
MOST_WORST = 12
MOST_ISSUES = 60
CARD_SIDE = 192
MOST_POINTS = 400
# With fewer images than this the 95 % interval of an accuracy is wider than about 10 points.
FEW_IMAGES = 200
# The averaged weights are evaluated and saved; the raw weights are a second curve for comparison.
RAW = "validation, raw weights"
# Title, unit, factor, and the names of the records with their labels.
CURVES = (
    ("Loss", "", 1, {"loss": "training", "val_loss": "validation", "raw_val_loss": RAW}),
    ("Accuracy", "%", 100, {"accuracy": "training", "val_accuracy": "validation", "raw_val_accuracy": RAW}),
    ("Learning rate", "", 1, {"lr": "learning rate"}),
    ("Speed", "images/s", 1, {"images_per_second": "training"}),
)
_USUAL = {name for *_, names in CURVES for name in names}
Attention = Callable[[NDArray[np.int64]], Sequence[str | None] | None]
"""From indices of images to attention maps as data URLs."""


def render_run(
    account: RunAccount,
    *,
    score: SplitScore | None = None,
    interval: tuple[float, float] | None = None,
    attention: Attention | None = None,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    dense: tuple[str, str, Mapping[str, Any]] | None = None,
) -> str:
    """Render the page from a run's records and, if the model could be evaluated, from its score on a split.

    `interval` is the 95 % interval of the accuracy, `facts` are figures with their words for the top of the page,
    `dense` is the headline of masks or boxes, the template of its section and the values of that.
    """
    values: dict[str, Any] = {
        "account": account,
        "name": printable(account.folder.name),
        "address": printable(str(account.run.get("data", ""))),
        "charts": lay_out_all(curves_of(account.records)),
        "events": [printable(str(record["event"])) for record in account.records if "event" in record],
        "score": score,
        "interval": interval,
        "facts": facts,
        "notes": notes,
        "set_aside": [printable(name) for name in account.data.get("set_aside", ())],
        "issues": _issues(account),
        "num_issues": len(account.data.get("issues", ())),
        "single": None,
        "dense": None,
        "ranked": [],
        "guess": None if score is None else majority_accuracy(score).get("majority_accuracy"),
        "next_steps": [] if score is None else next_steps(score, account),
    }
    if dense is not None:
        headline, template, parts = dense
        return render("run.html.j2", **values | dict(parts) | {"dense": template, "headline": headline})
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
        "bins": reliability_bars(figures),
        "mistakes": cards_of(score, chosen, attention=seen, side=CARD_SIDE),
        "num_mistakes": len(mistaken),
        "claim": claim_words(figures),
        "has_attention": bool(seen and any(seen)),
    }


def next_steps(score: SplitScore, account: RunAccount) -> list[str]:
    """Choose the next steps to suggest, from the score and the problems of the data."""
    steps = []
    if account.data.get("issues"):
        steps.append(
            "Look at the problems of the data, listed above; a check of the data shows each with its pictures."
        )
    if not isinstance(score.figures, SingleLabel):
        return [*steps, "Collect more images of the classes with the lowest average precision."]
    if len(score.mistaken):
        steps.append("Look at the mistakes above: a wrong label costs twice, in training and in this score.")
    if are_uneven([figure.num_images for figure in score.figures.per_class]):
        steps.append(
            "Classes are uneven: add images of the small ones, and read mean F1 rather than accuracy."
        )
    if score.figures.num_images < FEW_IMAGES:
        steps.append(
            f"{score.figures.num_images:,} images leave a wide interval: hold out more, or evaluate on a test set."
        )
    steps.append("Try it on new photos, and look at what it attends to.")
    return steps


def _issues(account: RunAccount) -> list[dict[str, str]]:
    return [
        {name: printable(str(issue[name])) for name in ("path", "problem", "detail")}
        for issue in account.data.get("issues", ())[:MOST_ISSUES]
    ]


def curves_of(records: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Chart the records of metrics.jsonl by step: the usual curves, then every other number of an evaluation."""
    others = sorted({name for record in records for name in record if name.startswith("val_")} - _USUAL)
    plans = [
        *CURVES,
        *(
            (name.removeprefix("val_").replace("_", " "), "", 1, {name: "validation", f"raw_{name}": RAW})
            for name in others
        ),
    ]
    charts = []
    for title, unit, factor, names in plans:
        series = {words: _curve(records, name, factor) for name, words in names.items()}
        series = {words: points for words, points in series.items() if points}
        if any(len(points) > 1 for points in series.values()):  # a single evaluation is no curve
            charts.append(
                Chart(title=title[:1].upper() + title[1:], y_label=unit, series=series, has_dots=False)
            )
    return charts


def _curve(records: Sequence[Mapping[str, Any]], name: str, factor: float) -> list[Point]:
    points = [
        Point(x=float(record["step"]), y=factor * float(record[name]))
        for record in records
        if isinstance(record.get(name), int | float) and math.isfinite(record[name])
    ]
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(at * (len(points) - 1) / (MOST_POINTS - 1))] for at in range(MOST_POINTS)]
