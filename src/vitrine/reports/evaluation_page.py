"""The report of an evaluation as one HTML file with its pictures inside, light and dark."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.source import Source
from vitrine.evaluation.classification import MultiLabel, SingleLabel
from vitrine.evaluation.scoring import confident_mistakes, likely_label_errors
from vitrine.reports.pages import render
from vitrine.reports.thumbnails import THUMBNAIL_SIDE, thumbnail
from vitrine.runtime.progress import track
from vitrine.spelling import printable

MOST_PICTURES = 24
MOST_CLASSES = 20
MOST_PAIRS = 10
# Above this many classes the matrix shows the ones that fare worst; the CSV file has all.
MOST_MATRIX = 40


def render_evaluation(
    figures: SingleLabel | MultiLabel,
    *,
    source: Source,
    probabilities: NDArray[Any],
    failures: dict[int, str],
    model: str,
) -> str:
    """Make the page: headline with interval, confusion, reliability, worst classes, mistakes as pictures."""
    readable = np.array([index for index in range(len(source)) if index not in failures], dtype=np.int64)
    values: dict[str, Any] = {
        "model": printable(model),
        "address": printable(source.address),
        "figures": figures,
        "unreadable": [
            {"path": printable(source.name(index)), "why": why} for index, why in list(failures.items())[:100]
        ],
        "num_unreadable": len(failures),
    }
    if isinstance(figures, MultiLabel):
        ranked = sorted(
            (item for item in figures.average_precision.items() if item[1] is not None),
            key=lambda item: item[1] or 0.0,
        )
        return render("multilabel.html.j2", classes=ranked[:MOST_CLASSES], **values)
    rows, labels = probabilities[readable], source.labels[readable]
    mistakes = confident_mistakes(rows, labels)[:MOST_PICTURES]
    suspects = likely_label_errors(rows, labels)
    shown = suspects[:MOST_PICTURES]
    return render(
        "evaluation.html.j2",
        worst=worst_classes(figures),
        matrix=matrix_cells(figures),
        pairs=confused_pairs(figures),
        bins=bars_of(figures),
        mistakes=cards_of(source, readable[mistakes], rows[mistakes], labels[mistakes]),
        suspects=cards_of(source, readable[shown], rows[shown], labels[shown]),
        num_suspects=len(suspects),
        **values,
    )


def worst_classes(figures: SingleLabel) -> list[dict[str, Any]]:
    """Return the classes with the lowest F1, with what they are taken for most often."""
    present = [k for k, figure in enumerate(figures.per_class) if figure.num_images]
    ranked = sorted(present, key=lambda k: (figures.per_class[k].f1 or 0.0, k))
    found = []
    for k in ranked[:MOST_CLASSES]:
        others = figures.confusion[k].copy()
        others[k] = 0
        taken_for = printable(figures.per_class[int(others.argmax())].name) if others.any() else ""
        figure = figures.per_class[k]
        found.append({"figure": figure, "name": printable(figure.name), "taken_for": taken_for,
                      "times": int(others.max())})  # fmt: skip
    return found


def confused_pairs(figures: SingleLabel) -> list[dict[str, Any]]:
    """Return the pairs of classes that are mixed up most often, label first."""
    # Of many classes nearly all pairs never occur: those that do are as many as images at most.
    rows, columns = np.nonzero(figures.confusion)
    rows, columns = rows[rows != columns], columns[rows != columns]
    order = np.argsort(-figures.confusion[rows, columns], kind="stable")[:MOST_PAIRS]
    return [
        {
            "label": printable(figures.per_class[i].name),
            "predicted": printable(figures.per_class[j].name),
            "times": int(figures.confusion[i, j]),
        }
        for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True)
    ]


def matrix_cells(figures: SingleLabel) -> dict[str, Any]:
    """Choose the classes that the matrix shows, in their order, with each row's shares."""
    present = [k for k, figure in enumerate(figures.per_class) if figure.num_images or figure.num_predicted]
    ranked = sorted(present, key=lambda k: (figures.per_class[k].f1 or 0.0, k))
    chosen = sorted(ranked[:MOST_MATRIX])
    counts = figures.confusion[np.ix_(chosen, chosen)]
    totals = np.maximum(figures.confusion[chosen].sum(axis=1, keepdims=True), 1)
    names = [printable(figures.per_class[k].name) for k in chosen]
    return {
        "names": names,
        "margin": 16 + round(6.5 * min(22, max(map(len, names)))),  # letters of 11 px, 22 of them at most
        "counts": counts.tolist(),
        "shares": np.round(counts / totals, 4).tolist(),
        "is_partial": len(chosen) < len(figures.per_class),
    }


def cards_of(
    source: Source,
    indices: NDArray[np.int64],
    probabilities: NDArray[Any],
    labels: NDArray[Any],
    *,
    attention: Sequence[str | None] | None = None,
    side: int = THUMBNAIL_SIDE,
) -> list[dict[str, Any]]:
    """Make a card for each of some images: picture, prediction, label; the attention beside it where it is given."""
    cards = []
    for row, index in enumerate(track(indices.tolist(), "Drawing pictures")):
        best = int(probabilities[row].argmax())
        cards.append(
            {
                "path": printable(source.name(index)),
                "picture": thumbnail(source, index, side=side),
                "attention": attention[row] if attention else None,
                "label": printable(source.classes[int(labels[row])]),
                "predicted": printable(source.classes[best]),
                "confidence": float(probabilities[row, best]),
                "label_probability": float(probabilities[row, int(labels[row])]),
            }
        )
    return cards


def bars_of(figures: SingleLabel) -> list[dict[str, float]]:
    """Return the bars of the reliability diagram."""
    return [
        {
            "low": found.low,
            "high": found.high,
            "num_images": found.num_images,
            "accuracy": found.accuracy or 0.0,
            "confidence": found.confidence if found.confidence is not None else (found.low + found.high) / 2,
        }
        for found in figures.calibration.bins
    ]
