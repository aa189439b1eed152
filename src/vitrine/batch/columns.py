"""The columns of a part: which numbers are computed for each picture, and how they are stored.

`path, sha256, label, predicted, confidence, ..., embedding, tokens, error`; a picture that cannot be read has
only its path and the error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitrine.data.sources.arrow import import_pyarrow
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.outputs import casting
from vitrine.evaluation.streaming import Computed
from vitrine.serving.answers import Prediction
from vitrine.serving.predictor import Predictor
from vitrine.spelling import printable

Store = Literal["float32", "float16"]
EMBEDDING, TOKENS = "embedding", "tokens"
# Separates the names of several labels in one cell.
BETWEEN_LABELS = ";"
# Columns of a model that predicts a number: the number, and the ends of its range if its errors are known.
_NUMBERS = ("predicted", "low", "high")
# Vectors are not compressed: they are noise to every codec.
_TEXT = ("path", "sha256", "label", "labels", "error")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are computed and stored for each picture."""

    top: int = 0
    """Number of classes to store with their probabilities; 0 for none."""
    has_embedding: bool = False
    has_tokens: bool = False
    """The features of every patch, after the last layer."""
    has_labels: bool = False
    store: Store = "float32"
    coverage: float | None = None


def compute(predictor: Predictor, pixels: Tensor, columns: Columns) -> dict[str, Tensor]:
    """Map pixels on the device to everything that the columns need, in one pass: names of `Predictor`, and tokens."""
    if columns.has_tokens and predictor.preprocess.max_patches is not None:
        raise ConfigError("needs pictures of one size, not of their own aspect ratio", option="tokens")
    if columns.has_tokens:
        with torch.inference_mode(), casting(predictor.device, predictor.precision):
            named = predictor.model.features(predictor.preprocess.normalise(pixels))
        if "patch_tokens" not in named:
            raise ConfigError("this model has no features per patch", option="tokens")
        kept = {"features": named["representation"], TOKENS: named["patch_tokens"]}
        return kept | ({"logits": named["logits"]} if columns.top else {})
    if columns.top and columns.has_embedding:
        return predictor.computed(pixels, wanted="both")
    return predictor.computed(pixels, wanted="scores" if columns.top else "features")


def schema_of(columns: Columns, predictor: Predictor, *, metadata: Mapping[str, str]) -> Any:
    """Return the schema of a part, which the model and the columns determine."""
    arrow = import_pyarrow("writing Parquet parts")
    text = arrow.string()
    fields = [("path", text), ("sha256", text)]
    if columns.has_labels:
        fields.append(("label", text))
    if columns.top and predictor.number_name is not None:
        fields += [(name, arrow.float32()) for name in _NUMBERS[: 1 if predictor.trust.errors is None else 3]]
    elif columns.top:
        if predictor.is_multi_label:
            fields.append(("labels", text))
        for rank in range(1, columns.top + 1):
            fields += [(_ranked("predicted", rank), text), (_ranked("confidence", rank), arrow.float32())]
        if predictor.trust.familiarity is not None:
            fields += [("familiarity", arrow.float32()), ("none_of_these", arrow.bool_())]
        if columns.coverage is not None:
            fields.append(("prediction_set", arrow.list_(text)))
    number = arrow.float16() if columns.store == "float16" else arrow.float32()
    shapes = output_shapes(predictor, columns)
    for name, shape in shapes.items():
        fields.append((name, arrow.list_(number, int(np.prod(shape)))))
    fields.append(("error", text))
    notes = dict(metadata) | {f"shape.{name}": "x".join(map(str, shape)) for name, shape in shapes.items()}
    return arrow.schema(fields, metadata=notes)


def output_shapes(predictor: Predictor, columns: Columns) -> dict[str, tuple[int, ...]]:
    """Return the shape of each vector column for one picture, measured on a black one."""
    if not (columns.has_embedding or columns.has_tokens):
        return {}
    black = torch.zeros(1, *predictor.preprocess.shape, dtype=torch.uint8)
    outputs = compute(predictor, black.to(predictor.device), columns)
    shapes = {EMBEDDING: tuple(outputs["features"].shape[1:])} if columns.has_embedding else {}
    return shapes | ({TOKENS: tuple(outputs[TOKENS].shape[1:])} if columns.has_tokens else {})


def table_of(
    computed: Computed, source: Source, *, columns: Columns, predictor: Predictor, schema: Any
) -> Any:
    """Turn the outputs for consecutive pictures of a source into rows."""
    arrow = import_pyarrow("writing Parquet parts")
    numbers = range(len(computed))
    names = [source.name(computed.start + row) for row in numbers]
    cells: dict[str, Any] = {
        "path": [printable(name) for name in names],
        "sha256": [computed.digests.get(row) for row in numbers],
        "error": [computed.failures.get(row) for row in numbers],
    }
    if columns.has_labels:
        cells["label"] = [label_text(source, computed.start + row) for row in numbers]
    if columns.top:
        scores = predictor.finished(computed.values, wanted="scores")
        judged = predictor.predictions(scores, names, top=columns.top, coverage=columns.coverage)
        if predictor.number_name is None:
            cells |= _class_cells(judged, computed.failures, top=columns.top, schema=schema)
        else:
            cells |= _number_cells(judged, computed.failures)
    for name, output in ((EMBEDDING, "features"), (TOKENS, TOKENS)):
        if name in schema.names:
            cells[name] = _vectors(computed.values[output], computed.failures, kind=schema.field(name).type)
    return arrow.table(
        [_array(arrow, cells[name], schema.field(name).type) for name in schema.names], schema=schema
    )


def label_text(source: Source, index: int) -> str:
    """Return the label of a picture as its class map names it, or its number."""
    if source.values is not None:
        return f"{source.values[index]:g}"
    label = source.label(index)
    numbers = label if isinstance(label, tuple) else (label,)
    return BETWEEN_LABELS.join(source.classes[number] for number in numbers if number >= 0)


def parquet_options(schema: Any) -> dict[str, Any]:
    """Return how a part is encoded: text compressed, vectors as they are."""
    number = import_pyarrow("writing Parquet parts").types.is_float32
    text = [
        name
        for name in schema.names
        if name in _TEXT
        or (name.startswith(("predicted", "prediction")) and not number(schema.field(name).type))
    ]
    return {
        "compression": dict.fromkeys(text, "zstd"),
        "use_dictionary": [name for name in text if name.startswith(("predicted", "label"))],
        "write_statistics": ["path"],
    }


def _class_cells(
    judged: Sequence[Prediction], failures: Mapping[int, str], *, top: int, schema: Any
) -> dict[str, list[Any]]:
    cells: dict[str, list[Any]] = {}
    kept = [None if row in failures else one for row, one in enumerate(judged)]
    for rank in range(1, top + 1):
        best = [None if one is None else one.answers[rank - 1] for one in kept]
        cells[_ranked("predicted", rank)] = [None if one is None else printable(one.label) for one in best]
        cells[_ranked("confidence", rank)] = [None if one is None else one.probability for one in best]
    for name in ("familiarity", "none_of_these", "prediction_set"):
        if name in schema.names:
            cells[name] = [None if one is None else getattr(one, name) for one in kept]
    if "labels" in schema.names:
        cells["labels"] = [None if one is None else BETWEEN_LABELS.join(one.labels or ()) for one in kept]
    return cells


def _number_cells(judged: Sequence[Prediction], failures: Mapping[int, str]) -> dict[str, list[Any]]:
    kept = [None if row in failures else one for row, one in enumerate(judged)]
    rows = [
        (None, None, None) if one is None else (one.number, *(one.interval or (None, None))) for one in kept
    ]
    return {name: [row[place] for row in rows] for place, name in enumerate(_NUMBERS)}


def _vectors(values: Tensor, failures: Mapping[int, str], *, kind: Any) -> Any:
    """Return (B, ...) as a column of lists of one length; pictures that cannot be read have none."""
    arrow = import_pyarrow("writing Parquet parts")
    rows = values.reshape(len(values), -1).numpy()
    if kind.value_type == arrow.float16():
        rows = rows.astype(np.float16)
    mask = None
    if failures:
        mask = np.zeros(len(rows), dtype=bool)
        mask[list(failures)] = True
        mask = arrow.array(mask)
    flat = arrow.array(np.ascontiguousarray(rows).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, type=kind, mask=mask)


def _array(arrow: Any, cells: Any, kind: Any) -> Any:
    return arrow.array(cells, type=kind) if isinstance(cells, list) else cells


def _ranked(word: str, rank: int) -> str:
    return word if rank == 1 else f"{word}_{rank}"
