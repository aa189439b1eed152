"""The files of an evaluation: predictions.csv, metrics.json, confusion.csv."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.source import Source
from vitrine.evaluation.answer_counts import AnswerFigures
from vitrine.evaluation.calibration import softmax
from vitrine.evaluation.classification import MultiLabel, SingleLabel
from vitrine.evaluation.number_line import NumberFigures
from vitrine.evaluation.objectnet import TOP, ObjectNetFigures, any_among_top
from vitrine.runtime.files import write_atomically, write_table
from vitrine.spelling import printable


def write_predictions(
    file: Path, source: Source, *, probabilities: NDArray[Any], failures: dict[int, str]
) -> None:
    """Write one row per image: label, prediction, probabilities of both, or the error."""
    classes = source.classes
    with write_table(file) as writer:
        writer.writerow(["path", "label", "predicted", "confidence", "label_probability", "correct", "error"])
        for index in range(len(source)):
            name = printable(source.name(index))
            label = source.label(index)
            labels = label if isinstance(label, tuple) else (label,)
            words = ";".join(printable(classes[k]) for k in labels)
            if index in failures:
                writer.writerow([name, words, "", "", "", "", failures[index]])
                continue
            row = probabilities[index]
            if source.is_multi_label:
                chosen = np.flatnonzero(row >= 0.5)
                shown = ";".join(f"{row[k]:.6f}" for k in chosen)
                own = ";".join(f"{row[k]:.6f}" for k in labels)
                right = set(chosen.tolist()) == set(labels)
                predicted = ";".join(printable(classes[k]) for k in chosen)
            else:
                best = int(row.argmax())
                shown, own, right = f"{row[best]:.6f}", f"{row[labels[0]]:.6f}", best == labels[0]
                predicted = printable(classes[best])
            writer.writerow([name, words, predicted, shown, own, int(right), ""])


def write_numbers(
    file: Path,
    source: Source,
    *,
    predicted: Mapping[int, float],
    half_width: float | None,
    failures: Mapping[int, str],
) -> None:
    """Write one row per image: the true number, the predicted one with its range, or the error."""
    assert source.values is not None
    with write_table(file) as writer:
        writer.writerow(["path", "value", "predicted", "low", "high", "error"])
        for index in range(len(source)):
            start = [printable(source.name(index)), f"{source.values[index]:.6g}"]
            if index in failures:
                writer.writerow([*start, "", "", "", failures[index]])
                continue
            value = predicted[index]
            ends = (
                ["", ""] if half_width is None else [f"{value - half_width:.6g}", f"{value + half_width:.6g}"]
            )
            writer.writerow([*start, f"{value:.6g}", *ends, ""])


def write_object_predictions(
    file: Path,
    source: Source,
    *,
    logits: NDArray[Any],
    accepted: Sequence[Sequence[int]],
    class_names: Sequence[str],
    failures: Mapping[int, str],
) -> None:
    """Write one row per picture: the most likely class, whether it is one of the object's, or the error."""
    probabilities = softmax(logits)
    is_right, is_among = (any_among_top(logits, source.labels, accepted, k=k) for k in (1, TOP))
    with write_table(file) as writer:
        writer.writerow(["path", "object", "predicted", "confidence", "correct", f"in_top{TOP}", "error"])
        for index in range(len(source)):
            start = [printable(source.name(index)), printable(source.classes[int(source.labels[index])])]
            if index in failures:
                writer.writerow([*start, "", "", "", "", failures[index]])
                continue
            best = int(logits[index].argmax())
            flags = [int(is_right[index]), int(is_among[index])]
            writer.writerow(
                [*start, printable(class_names[best]), f"{probabilities[index, best]:.6f}", *flags, ""]
            )


def write_metrics(
    file: Path, figures: SingleLabel | MultiLabel | NumberFigures | ObjectNetFigures, **facts: Any
) -> None:
    """Write every figure and the facts of the run as JSON; the confusion matrix has its own file."""
    values = dataclasses.asdict(figures)
    values.pop("confusion", None)
    with write_atomically(file, mode="w") as opened:
        json.dump({**facts, **values}, opened, indent=2, allow_nan=False)
        opened.write("\n")


def write_confusion(file: Path, figures: SingleLabel | AnswerFigures) -> None:
    """Write the counts by label (rows) and prediction (columns)."""
    names = [printable(figure.name) for figure in figures.per_class]
    with write_table(file) as writer:
        writer.writerow(["label \\ predicted", *names])
        writer.writerows([name, *row.tolist()] for name, row in zip(names, figures.confusion, strict=True))
