"""The work behind `vitrine evaluate PARTS`: the answers that `vitrine predict` wrote, compared with their labels."""

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.batch.parts import JOB, PartFolder, PartRecord
from vitrine.data.sources.arrow import import_pyarrow
from vitrine.errors import ConfigError, DataError, TryVerb
from vitrine.evaluation.answer_counts import AnswerCounts, AnswerFigures
from vitrine.evaluation.metrics import Interval
from vitrine.evaluation.writing import write_confusion
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.places import Folder, LocalFolder, is_remote, open_folder
from vitrine.runtime.progress import track
from vitrine.runtime.result import Result
from vitrine.spelling import printable

METRICS, CONFUSION = "metrics.json", "confusion.csv"
MOST_WORST = 5
# Answers that top-5 accuracy looks at.
_TOP = 5
_ROWS = 65_536


@dataclass(frozen=True, kw_only=True, repr=False)
class PartsEvaluation(Result):
    """The figures of a folder of parts, and the files that hold the rest."""

    folder: str
    model: str
    """The one that made the predictions."""
    num_images: int
    num_unreadable: int
    num_classes: int
    top1: Interval
    top5: Interval | None
    macro_f1: float
    ece: float
    mean_confidence: float
    """Mean probability of the answers: above `top1` the model is overconfident, below it underconfident."""
    worst: tuple[tuple[str, float], ...]
    """Classes with the lowest F1, lowest first."""
    wrote: tuple[Path, ...]


def is_folder_of_parts(word: str | None) -> bool:
    """Whether a word names a folder of parts, here or at an address."""
    if word is None:
        return False
    return open_folder(word).read(JOB) is not None if is_remote(word) else (Path(word) / JOB).is_file()


def evaluate_parts(folder: str, *, out: Path | None, is_overwriting: bool) -> PartsEvaluation:
    """Score the answers in a folder of parts, one row group in memory at a time."""
    parts = PartFolder.open(folder)
    records, missing = parts.finished(), parts.missing()
    if missing:
        raise ConfigError(f"{printable(folder)} lacks {len(missing)} of its {parts.job.num_parts} parts")
    here = new_output_folder(out, verb="evaluate", files=(METRICS, CONFUSION), is_overwriting=is_overwriting)
    counts, answers = AnswerCounts(), _answer_columns(parts.job.columns)
    with removed_if_empty(here):
        for _, record in track(sorted(records.items()), "Evaluating parts"):
            with _at_hand(parts.folder, record) as file:
                _count(file, counts, answers=answers, folder=folder)
        if not counts.num_images:
            raise DataError(f"no picture of {printable(folder)} can be read")
    figures = counts.figures(num_answers=len(answers))
    num_unreadable = sum(record.num_unreadable for record in records.values())
    wrote = _written(figures, here, folder=folder, model=parts.job.model, num_unreadable=num_unreadable)
    worst = sorted((one.f1, printable(one.name)) for one in figures.per_class if one.f1 is not None)
    return PartsEvaluation(
        folder=printable(parts.folder.address),
        model=parts.job.model,
        num_images=figures.num_images,
        num_unreadable=num_unreadable,
        num_classes=len(figures.per_class),
        top1=figures.top1,
        top5=figures.top5,
        macro_f1=figures.macro_f1,
        ece=figures.ece,
        mean_confidence=figures.mean_confidence,
        worst=tuple((name, value) for value, name in worst[:MOST_WORST]),
        wrote=wrote,
    )


def _answer_columns(columns: dict[str, Any]) -> list[str]:
    """Return the columns of the most likely classes, most likely first."""
    return ["predicted", *(f"predicted_{rank}" for rank in range(2, min(int(columns["top"]), _TOP) + 1))]


@contextmanager
def _at_hand(folder: Folder, record: PartRecord) -> Iterator[Path]:
    """Give the file of a part, as a copy if it is elsewhere."""
    if isinstance(folder, LocalFolder):
        yield folder.path / record.file
        return
    with tempfile.TemporaryDirectory(prefix="vitrine-") as here:
        folder.get(record.file, Path(here) / record.file)
        yield Path(here) / record.file


def _count(part: Path, counts: AnswerCounts, *, answers: list[str], folder: str) -> None:
    """Count the rows of one part."""
    file = import_pyarrow("reading Parquet parts").parquet.ParquetFile(part)
    names = file.schema_arrow.names
    if "label" not in names:
        raise DataError(
            f"{printable(folder)} has no column label: the pictures had none",
            advice=[TryVerb("shard", ("PHOTOS", "SHARDS"), "to pack class folders with their labels")],
        )
    if "confidence" not in names:
        raise DataError(f"{printable(folder)} has no column confidence: the model has no classes")
    if "labels" in names:
        raise DataError(
            f"{printable(folder)} has several labels per picture, whose average precision needs every probability; "
            "evaluate the model on the pictures instead"
        )
    for batch in file.iter_batches(batch_size=_ROWS, columns=["label", "confidence", *answers]):
        rows = batch.filter(batch["predicted"].is_valid())
        labels = _numbered(counts, rows["label"])
        guesses = np.stack([_numbered(counts, rows[column]) for column in answers])  # (answers, N)
        if "" in rows["label"].unique().to_pylist():
            raise DataError(f"{printable(folder)} has pictures without a label")
        counts.add(
            labels,
            guesses[0],
            rows["confidence"].to_numpy(zero_copy_only=False).astype(np.float64),
            is_among_first=(guesses == labels).any(axis=0),
        )


def _numbered(counts: AnswerCounts, column: Any) -> Any:
    encoded = column.dictionary_encode()
    numbers = counts.numbers([str(name) for name in encoded.dictionary.to_pylist()])
    return numbers[encoded.indices.to_numpy()]


def _written(
    figures: AnswerFigures, here: Path, *, folder: str, model: str, num_unreadable: int
) -> tuple[Path, ...]:
    """Write metrics.json and confusion.csv."""
    values = {
        field.name: getattr(figures, field.name)
        for field in dataclasses.fields(figures)
        if field.name != "confusion"
    }
    plain = json.loads(json.dumps(values, default=dataclasses.asdict))
    with write_atomically(here / METRICS, mode="w") as file:
        json.dump(
            {"parts": folder, "model": model, "num_unreadable": num_unreadable, **plain}, file, indent=2
        )
        file.write("\n")
    write_confusion(here / CONFUSION, figures)
    return here / METRICS, here / CONFUSION
