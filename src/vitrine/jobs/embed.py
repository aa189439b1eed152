"""The work behind `vitrine embed`: pictures through a model to one feature vector each, in a file."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vitrine.data.sources.opening import is_loose, open_kind
from vitrine.data.sources.source import Source
from vitrine.errors import DataError, VitrineError
from vitrine.jobs.model_argument import opened_pictures, plan_of
from vitrine.runtime.output_folder import new_output_folder
from vitrine.runtime.progress import announced, present, quiet
from vitrine.runtime.result import Result
from vitrine.serving.output_files import FEATURE_KINDS, require_kind, write_features
from vitrine.serving.predictor import Predictor
from vitrine.spelling import printable

FILE = "features.npy"
# Separates the names of several labels in one cell.
BETWEEN_LABELS = ";"


@dataclass(frozen=True, kw_only=True, repr=False)
class EmbedResult(Result):
    """How many feature vectors there are, and where."""

    model: str
    num_pictures: int
    width: int
    unreadable: dict[str, str]
    """Pictures that cannot be read, and why."""
    wrote: tuple[Path, ...]
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 where, if strict, a picture could not be read."""
        return int(self.is_strict and bool(self.unreadable))


def embed_pictures(
    model: str | None,
    pictures: Iterable[Any],
    *,
    out: Path | None,
    image_size: int | None,
    batch_size: int | None,
    workers: int,
    device: str,
    precision: Literal["fp32", "bf16"],
    is_strict: bool,
    is_overwriting: bool,
) -> EmbedResult:
    """Compute the features of all pictures and write them to `out`, or to a new folder."""
    name, source = opened_pictures("embed", model, pictures, out=out)
    if out is not None:
        require_kind(out, FEATURE_KINDS, is_overwriting=is_overwriting)
    predictor = Predictor.open(
        name,
        device=device,
        precision=precision,
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
    )
    present(plan_of(predictor, source, name))
    parts: list[torch.Tensor] = []
    failures: dict[int, str] = {}
    with announced("Embedding", total=len(source)) as advance:
        for rows in predictor.stream(source, wanted="features"):
            parts.append(rows.values)
            failures |= {rows.start + row: why for row, why in rows.failures.items()}
            advance(len(rows.values), "")
    if len(failures) == len(source):
        raise DataError(f"no picture can be read; the first: {failures[0]}")
    values = torch.cat(parts).numpy()  # (N, R)
    names = [source.name(index) for index in range(len(source))]
    file = out if out is not None else new_output_folder(None, verb="embed", files=(FILE,)) / FILE
    return EmbedResult(
        model=name,
        num_pictures=len(source),
        width=values.shape[1],
        unreadable={printable(names[index]): why for index, why in failures.items()},
        wrote=write_features(
            file, values, names=names, failures=failures, labels=label_names(source, model, pictures)
        ),
        is_strict=is_strict,
    )


def label_names(source: Source, model: str | None, pictures: Iterable[Any]) -> list[str] | None:
    """Return the label of each picture, from the data set that it is part of; None without labels.

    Pictures of a folder are listed as files; the class folders or the table around them know their labels.
    """
    if source.is_labelled:
        return [_label_of(source, index) for index in range(len(source))]
    places = [
        one for one in (model, *(pictures if isinstance(pictures, tuple) else ())) if isinstance(one, str)
    ]
    known: dict[str, str] = {}
    for place in places:
        known |= _labels_below(Path(place))
    names = [str(source.path(index)) for index in range(len(source))]
    return [known.get(name, "") for name in names] if any(name in known for name in names) else None


def _labels_below(place: Path) -> dict[str, str]:
    """Return the labels of the files of a data set by their path; none if `place` is no set of labelled files."""
    if not place.exists() or is_loose(place):
        return {}
    try:
        with quiet():
            splits = open_kind(place)
    except VitrineError:
        return {}
    return {
        str(path): _label_of(split, index)
        for split in splits.values()
        for index in range(len(split))
        if (path := split.path(index)) is not None
    }


def _label_of(source: Source, index: int) -> str:
    if source.values is not None:
        return f"{source.values[index]:g}"
    label = source.label(index)
    numbers = label if isinstance(label, tuple) else (label,)
    return BETWEEN_LABELS.join(source.classes[number] for number in numbers if number >= 0)
