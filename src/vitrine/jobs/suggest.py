"""The work behind `vitrine suggest`: unlabelled pictures through a model to a list of those worth labelling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.features import logits_and_features
from vitrine.evaluation.labelling import choose_to_label
from vitrine.evaluation.outputs import casting, run_model
from vitrine.jobs.model_argument import opened_pictures, plan_of
from vitrine.reports.data_pages import render_suggestions
from vitrine.reports.pages import write_page
from vitrine.runtime.files import write_table
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import present
from vitrine.runtime.result import Result
from vitrine.serving.predictor import Predictor
from vitrine.spelling import printable

PAGE, TABLE = "suggestions.html", "suggestions.csv"


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A picture to label, with the model's best guess."""

    path: str
    predicted: str
    confidence: float


@dataclass(frozen=True, kw_only=True, repr=False)
class SuggestResult(Result):
    """The pictures to label next, the most worthwhile first, and the files that list them."""

    model: str
    num_pictures: int
    num_errors: int
    """Pictures that cannot be read."""
    suggestions: tuple[Suggestion, ...]
    wrote: tuple[Path, ...]


def suggest_pictures(
    model: str | None,
    pictures: Iterable[Any],
    *,
    count: int,
    out: Path | None,
    seed: int,
    image_size: int | None,
    batch_size: int | None,
    workers: int,
    device: str,
    precision: Literal["fp32", "bf16"],
    is_overwriting: bool,
) -> SuggestResult:
    """Choose the pictures to label next, and write them as a page and a table."""
    name, source = opened_pictures("suggest", model, pictures, out=out, device=device)
    predictor = Predictor.open(
        name,
        device=device,
        precision=precision,
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
    )
    predictor.require_head()
    folder = new_output_folder(out, verb="suggest", files=(PAGE, TABLE), is_overwriting=is_overwriting)
    with removed_if_empty(folder):
        present(plan_of(predictor, source, name))
        rows, probabilities, features = _outputs(predictor, source)
        chosen = choose_to_label(features, probabilities, count=count, seed=seed).tolist()
    best = probabilities.max(dim=1)
    suggestions = tuple(
        Suggestion(
            path=printable(source.name(int(rows[row]))),
            predicted=printable(predictor.classes[int(best.indices[row])]),
            confidence=float(best.values[row]),
        )
        for row in chosen
    )
    _write_table(folder / TABLE, suggestions)
    page = write_page(
        folder / PAGE,
        render_suggestions(source, rows[chosen].tolist(), suggestions, model=name, num_pictures=len(source)),
    )
    return SuggestResult(
        model=name,
        num_pictures=len(source),
        num_errors=len(source) - len(rows),
        suggestions=suggestions,
        wrote=(page, folder / TABLE),
    )


def _outputs(predictor: Predictor, source: Source) -> tuple[np.ndarray, Tensor, Tensor]:
    """Return the indices of the readable pictures, their probabilities (N, K) and features (N, R)."""
    num_classes = predictor.num_classes
    assert num_classes is not None

    def both(images: Tensor) -> Tensor:
        with casting(predictor.device, predictor.precision):
            return torch.cat(logits_and_features(predictor.model, images), dim=1)

    outputs = run_model(
        predictor.model, source, preprocess=predictor.preprocess, function=both, device=predictor.device,
        batch_size=predictor.batch_size, num_workers=predictor.workers, what="Reading pictures",
    )  # fmt: skip
    rows = np.flatnonzero(outputs.readable)
    if len(rows) == 0:
        raise DataError(f"no picture can be read; the first: {next(iter(outputs.failures.values()))}")
    values = outputs.rows[torch.from_numpy(rows)]
    return rows, predictor.probabilities(values[:, :num_classes]), values[:, num_classes:]


def _write_table(file: Path, suggestions: Sequence[Suggestion]) -> None:
    """Write `path,label,predicted,confidence`; the label is empty, to be filled in."""
    with write_table(file) as writer:
        writer.writerow(["path", "label", "predicted", "confidence"])
        writer.writerows([one.path, "", one.predicted, f"{one.confidence:.4f}"] for one in suggestions)
