"""Files of predictions (CSV, JSON, JSON lines) and of features (.npy with a table of paths, Parquet)."""

import csv
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.arrow import import_pyarrow
from vitrine.errors import ConfigError, TryOption
from vitrine.runtime.array_file import save_array
from vitrine.runtime.files import BYTE_ORDER_MARK, write_atomically, write_table
from vitrine.runtime.places import Place, place_exists, suffix_of
from vitrine.serving.answers import Prediction
from vitrine.spelling import printable

STANDARD_OUTPUT = Path("-")
"""Given in place of a file: predictions go to standard output as CSV."""
PREDICTION_KINDS = (".csv", ".json", ".jsonl")
FEATURE_KINDS = (".npy", ".parquet")
# Maximum numbers in a column of lists with 32-bit offsets; 2.8 million rows of 768 exceed it.
_LONGEST_LIST = 2**31 - 1
PARQUET_FILE = "a .parquet file"


def require_kind(file: Place, kinds: Sequence[str], *, is_overwriting: bool) -> None:
    """Refuse, before any work, an unknown kind of file, an existing file, or one that needs a missing extra."""
    if suffix_of(file) not in kinds:
        raise ConfigError(
            f"must end in {', '.join(kinds)}, or be a folder for parts, got {printable(str(file))}",
            option="out",
        )
    if place_exists(file) and not is_overwriting:
        raise ConfigError(
            f"{printable(str(file))} exists",
            option="out",
            advice=[TryOption("overwrite", "to replace it", True)],
        )
    if suffix_of(file) == ".parquet":
        import_pyarrow(PARQUET_FILE)


def write_predictions(
    file: Path,
    predictions: Iterable[Prediction],
    *,
    top: int,
    has_labels: bool = False,
    has_numbers: bool = False,
    is_ascii: bool = True,
) -> tuple[int, int]:
    """Write predictions as they arrive; return their number and the number of errors among them.

    `has_labels` adds a column of labels that apply; `has_numbers` writes numbers and their ranges. A CSV with
    non-ASCII characters begins with a byte order mark, without which Excel shows them wrongly.
    """
    counts = [0, 0]

    def counted() -> Iterator[Prediction]:
        for prediction in predictions:
            counts[0] += 1
            counts[1] += prediction.error is not None
            yield prediction

    def write_csv(opened: IO[str]) -> None:
        if has_numbers:
            _csv_of_numbers(opened, counted())
        else:
            _csv(opened, counted(), top, has_labels=has_labels)

    if file == STANDARD_OUTPUT:
        write_csv(sys.stdout)
        return counts[0], counts[1]
    with write_atomically(file, mode="w") as opened:
        if file.suffix == ".csv":
            opened.write("" if is_ascii else BYTE_ORDER_MARK)
            write_csv(opened)
        else:
            {".json": _json, ".jsonl": _json_lines}[file.suffix](opened, counted())
    return counts[0], counts[1]


def write_features(
    file: Path,
    rows: NDArray[np.float32],
    *,
    names: Sequence[str],
    failures: dict[int, str],
    labels: Sequence[str] | None = None,
) -> tuple[Path, ...]:
    """Write features (N, R) with the paths, and the labels if they are known, of their pictures; return the files.

    A .npy file has one row per readable picture, and a .csv beside it maps rows to paths; a .parquet file has both,
    one row per picture.
    """
    if file.suffix == ".parquet":
        _write_parquet(file, rows, names=names, failures=failures, labels=labels)
        return (file,)
    keep = [index for index in range(len(names)) if index not in failures]
    table = file.with_suffix(".csv")
    place = {index: row for row, index in enumerate(keep)}
    # Both are written before either takes its place: on a full disk there is neither.
    with write_atomically(file) as opened, write_table(table) as writer:
        writer.writerow(["row", "path", *([] if labels is None else ["label"]), "error"])
        for index, name in enumerate(names):
            label = [] if labels is None else [printable(labels[index])]
            writer.writerow([place.get(index, ""), printable(name), *label, failures.get(index, "")])
        save_array(opened, rows[keep] if failures else rows)
        opened.flush()
    return file, table


def _csv(file: IO[str], predictions: Iterator[Prediction], top: int, *, has_labels: bool) -> None:
    writer = csv.writer(file, lineterminator="\n")
    columns = [
        f"{word}{'' if rank == 1 else f'_{rank}'}"
        for rank in range(1, top + 1)
        for word in ("predicted", "confidence")
    ]
    # The first readable picture shows which of the optional columns the model supports.
    held: list[Prediction] = []
    extra: tuple[str, ...] = ()
    for prediction in predictions:
        held.append(prediction)
        if prediction.error is None:
            extra = tuple(name for name in _EXTRA if getattr(prediction, name) is not None)
            break
    writer.writerow(["path", *(["labels"] if has_labels else []), *columns, *extra, "error"])
    for prediction in itertools.chain(held, predictions):
        applying = [";".join(map(printable, prediction.labels or ()))] if has_labels else []
        cells: list[str] = []
        for answer in prediction.answers:
            cells += [printable(answer.label), f"{answer.probability:.6f}"]
        cells += [""] * (2 * top - len(cells))
        cells += [_EXTRA[name](getattr(prediction, name)) for name in extra]
        writer.writerow([printable(prediction.name), *applying, *cells, prediction.error or ""])


def _csv_of_numbers(file: IO[str], predictions: Iterable[Prediction]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["path", "predicted", "low", "high", "error"])
    for one in predictions:
        number = "" if one.number is None else f"{one.number:.6g}"
        ends = ["", ""] if one.interval is None else [f"{end:.6g}" for end in one.interval]
        writer.writerow([printable(one.name), number, *ends, one.error or ""])


def _json(file: IO[str], predictions: Iterator[Prediction]) -> None:
    before = "[\n"
    for prediction in predictions:
        file.write(before + json.dumps(_plain(prediction), ensure_ascii=False))
        before = ",\n"
    file.write("\n]\n" if before == ",\n" else "[]\n")


def _json_lines(file: IO[str], predictions: Iterator[Prediction]) -> None:
    for prediction in predictions:
        file.write(json.dumps(_plain(prediction), ensure_ascii=False) + "\n")


def _plain(prediction: Prediction) -> dict[str, Any]:
    answers = [
        {
            "label": printable(answer.label),
            "number": answer.number,
            "probability": round(answer.probability, 6),
        }
        for answer in prediction.answers
    ]
    labels = {} if prediction.labels is None else {"labels": list(map(printable, prediction.labels))}
    if prediction.number is not None:
        ends = None if prediction.interval is None else list(prediction.interval)
        return {
            "path": printable(prediction.name),
            "number": prediction.number,
            "interval": ends,
            "error": None,
        }
    limits = {name: getattr(prediction, name) for name in _EXTRA if getattr(prediction, name) is not None}
    return {
        "path": printable(prediction.name), **labels, "answers": answers, **limits, "error": prediction.error
    }  # fmt: skip


# Optional columns about a model's confidence, and how a value is written; empty for unreadable pictures.
_EXTRA: dict[str, Callable[[Any], str]] = {
    "familiarity": lambda share: "" if share is None else f"{share:.4f}",
    "none_of_these": lambda flag: "" if flag is None else ("yes" if flag else "no"),
    "prediction_set": lambda names: "" if names is None else "; ".join(map(printable, names)),
}


def _write_parquet(
    file: Path,
    rows: NDArray[np.float32],
    *,
    names: Sequence[str],
    failures: dict[int, str],
    labels: Sequence[str] | None,
) -> None:
    pyarrow = import_pyarrow(PARQUET_FILE)
    missing = np.zeros(len(names), dtype=bool)
    missing[list(failures)] = True
    ends = np.concatenate([[0], np.cumsum(np.where(missing, 0, rows.shape[1]))])
    is_long = ends[-1] > _LONGEST_LIST
    features = (pyarrow.LargeListArray if is_long else pyarrow.ListArray).from_arrays(
        pyarrow.array(ends.astype(np.int64 if is_long else np.int32)),
        pyarrow.array(np.ascontiguousarray(rows[~missing] if failures else rows).reshape(-1)),
        mask=pyarrow.array(missing),
    )
    table = pyarrow.table(
        {
            "path": [printable(name) for name in names],
            **({} if labels is None else {"label": [printable(label) for label in labels]}),
            "features": features,
            "error": pyarrow.array([failures.get(index) for index in range(len(names))], pyarrow.string()),
        }
    )
    with write_atomically(file) as opened:
        pyarrow.parquet.write_table(table, opened)
