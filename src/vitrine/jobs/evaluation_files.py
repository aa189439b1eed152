"""The files of an evaluation: predictions, metrics, confusion and page, for classes and for numbers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from vitrine.checkpoints import Loaded
from vitrine.data.sources.source import Source, Subset
from vitrine.evaluation.classification import SingleLabel
from vitrine.evaluation.number_line import NumberFigures, score_numbers
from vitrine.evaluation.outputs import (
    Outputs,
)
from vitrine.evaluation.scoring import SplitScore
from vitrine.evaluation.writing import write_confusion, write_metrics, write_numbers, write_predictions
from vitrine.reports.evaluation_page import render_evaluation
from vitrine.reports.number_page import render_numbers
from vitrine.reports.pages import write_page
from vitrine.spelling import printable

PREDICTIONS, METRICS, CONFUSION, PAGE = "predictions.csv", "metrics.json", "confusion.csv", "report.html"


def numbers_of(
    outputs: Outputs, source: Source, loaded: Loaded, folder: Path, *, model: str, is_first: bool
) -> tuple[NumberFigures, tuple[Path, ...]]:
    """Score a model of numbers on the readable images; write predictions, metrics and the page."""
    assert source.values is not None and loaded.record.number is not None
    rows = np.flatnonzero(outputs.readable)
    predicted = outputs.rows[torch.from_numpy(rows), 0].double().numpy()
    half = loaded.record.number.get("half_width")
    readable = Subset(source, rows)
    true = source.values[rows].astype(np.float64)
    figures = score_numbers(predicted, true, name=str(loaded.record.number["name"]), half_width=half)
    if not is_first:
        return figures, ()
    wrote = (folder / PREDICTIONS, folder / METRICS, folder / PAGE)
    values = dict(zip(rows.tolist(), predicted.tolist(), strict=True))
    write_numbers(wrote[0], source, predicted=values, half_width=half, failures=outputs.failures)
    write_metrics(
        wrote[1],
        figures,
        model=model,
        data=source.address,
        unreadable=unreadable_names(source, outputs.failures),
    )
    write_page(wrote[2], render_numbers(readable, predicted, true, figures, title="Evaluation", model=model))
    return figures, wrote


def unreadable_names(source: Source, failures: Mapping[int, str]) -> dict[str, str]:
    """Return the names of images that cannot be read, and why."""
    return {printable(source.name(index)): why for index, why in failures.items()}


def write_score(
    folder: Path, score: SplitScore, extra: Mapping[str, float], *, model: str
) -> tuple[Path, ...]:
    """Write predictions, metrics, confusion and the page of a classifier."""
    source, failures = score.source, score.outputs.failures
    wrote = [folder / PREDICTIONS, folder / METRICS]
    write_predictions(wrote[0], source, probabilities=score.probabilities, failures=failures)
    write_metrics(
        wrote[1],
        score.figures,
        model=model,
        data=source.address,
        split=score.split,
        unreadable=unreadable_names(score.source, failures),
        extra=dict(extra),
    )
    if isinstance(score.figures, SingleLabel):
        wrote.append(folder / CONFUSION)
        write_confusion(wrote[-1], score.figures)
    wrote.append(write_page(folder / PAGE, render_evaluation(score, model=model, extra=extra)))
    return tuple(wrote)
