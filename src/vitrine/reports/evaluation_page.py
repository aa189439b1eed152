"""The page of an evaluation: headline, worst classes, calibration, confusion matrix, mistakes as pictures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.source import Source
from vitrine.evaluation.classification import SingleLabel
from vitrine.evaluation.metrics import compared
from vitrine.evaluation.scoring import SplitScore, likely_label_errors
from vitrine.reports.pages import THUMBNAIL_SIDE, render, thumbnail
from vitrine.runtime.progress import track
from vitrine.spelling import counted, cut_to, printable, width_of

MOST_PICTURES = 24
MOST_CLASSES = 20
MOST_PAIRS = 10
MOST_UNREADABLE = 100
# With more classes than this the matrix shows the worst ones; the CSV file has all.
MOST_MATRIX = 40
# The labels of the matrix have letters of 11, 13 or 15 px, by the size of the cells. A letter is about 0.6 times as
# wide as high, and twice that in Chinese; longer names are cut.
LABEL_LETTERS, LETTER, LABEL_SIZES = 22, 0.6, {30: 11, 60: 13}
# Few classes get large cells with their counts; many get small ones.
MATRIX_SIDE, SMALLEST_CELL, LARGEST_CELL = 880, 22, 140


def render_evaluation(score: SplitScore, *, model: str, extra: Mapping[str, float]) -> str:
    """Render the page of `vitrine evaluate`; `extra` are the numbers of the registered evaluators."""
    failures = score.outputs.failures
    values: dict[str, Any] = {
        "model": printable(model),
        "address": printable(score.source.address),
        "split": score.split,
        "figures": score.figures,
        "extra": extra,
        "unreadable": [
            {"path": (name := printable(score.source.name(index))), "why": why.removeprefix(name).strip()}
            for index, why in list(failures.items())[:MOST_UNREADABLE]
        ],
        "num_unreadable": len(failures),
    }
    if not isinstance(score.figures, SingleLabel):
        return render("multilabel.html.j2", classes=score.worst_classes[:MOST_CLASSES], **values)
    readable = np.flatnonzero(score.outputs.readable)
    rows, labels = score.probabilities[readable], score.source.labels[readable]
    suspects = readable[likely_label_errors(rows, labels)]
    return render(
        "evaluation.html.j2",
        worst=worst_classes(score.figures),
        matrix=matrix_cells(score.figures),
        pairs=confused_pairs(score.figures),
        claim=claim_words(score.figures),
        bins=reliability_bars(score.figures),
        mistakes=cards_of(score, score.mistaken[:MOST_PICTURES]),
        num_mistakes=len(score.mistaken),
        suspects=cards_of(score, suspects[:MOST_PICTURES]),
        num_suspects=len(suspects),
        **values,
    )


def worst_classes(figures: SingleLabel) -> list[dict[str, Any]]:
    """Return the classes with the lowest F1, each with the class it is most often confused with."""
    present = [k for k, figure in enumerate(figures.per_class) if figure.num_images]
    ranked = sorted(present, key=lambda k: (figures.per_class[k].f1 or 0.0, k))
    rows = []
    for k in ranked[:MOST_CLASSES]:
        others = figures.confusion[k].copy()
        others[k] = 0
        confused_with = printable(figures.per_class[int(others.argmax())].name) if others.any() else ""
        figure = figures.per_class[k]
        rows.append(
            {
                "figure": figure,
                "name": printable(figure.name),
                "confused_with": confused_with,
                "times": int(others.max()),
            }
        )
    return rows


def confused_pairs(figures: SingleLabel) -> list[dict[str, Any]]:
    """Return the pairs of classes that are confused most often, label first."""
    # With many classes nearly all pairs never occur; those that do are at most as many as images.
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
    names = [cut_to(printable(figures.per_class[k].name), LABEL_LETTERS) for k in chosen]
    side = max(SMALLEST_CELL, min(LARGEST_CELL, MATRIX_SIDE // len(names)))
    size = next((size for least, size in LABEL_SIZES.items() if side < least), 15)
    return {
        "names": names,
        "side": side,
        "size": size,
        "margin": 16 + round(LETTER * size * max(map(width_of, names))),
        "counts": counts.tolist(),
        "shares": np.round(counts / totals, 4).tolist(),
        "is_partial": len(chosen) < len(figures.per_class),
    }


def cards_of(
    score: SplitScore,
    indices: NDArray[np.int64],
    *,
    attention: Sequence[str | None] | None = None,
    side: int = THUMBNAIL_SIDE,
) -> list[dict[str, Any]]:
    """Return a card per image: picture, prediction, label, and the attention map if there is one."""
    source: Source = score.source
    cards = []
    for place, index in enumerate(track(indices.tolist(), "Drawing pictures")):
        row, label = score.probabilities[index], int(source.labels[index])
        best = int(row.argmax())
        cards.append(
            {
                "path": printable(source.name(index)),
                "picture": thumbnail(source, index, side=side),
                "attention": attention[place] if attention else None,
                "label": printable(source.classes[label]),
                "predicted": printable(source.classes[best]),
                "confidence": float(row[best]),
                "label_probability": float(row[label]),
            }
        )
    return cards


def claim_words(figures: SingleLabel) -> str:
    """Compare the model's confidence with its accuracy, in one sentence."""
    claimed, right = figures.calibration.mean_confidence, figures.top1
    return (
        f"The model is {compared(claimed, right)}: it claims {100 * claimed:.1f} % on average and is right for "
        f"{100 * right.value:.1f} % of {counted(figures.num_images, 'image')}."
    )


def reliability_bars(figures: SingleLabel) -> list[dict[str, float]]:
    """Return the bars of the reliability diagram."""
    return [
        {
            "low": one.low,
            "high": one.high,
            "num_images": one.num_images,
            "accuracy": one.accuracy or 0.0,
            "confidence": one.confidence if one.confidence is not None else (one.low + one.high) / 2,
        }
        for one in figures.calibration.bins
    ]
