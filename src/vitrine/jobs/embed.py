"""The work behind `vitrine embed`: pictures through a model to one feature vector each, in a file."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrine.batch.columns import EMBEDDING, Columns, Store, label_text, output_shapes
from vitrine.data.sources.opening import is_loose, open_kind
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError, VitrineError
from vitrine.evaluation.outputs import Wish
from vitrine.evaluation.streaming import Pace
from vitrine.jobs.model_argument import opened_pictures, plan_of
from vitrine.jobs.parts_job import (
    EngineName,
    PartsResult,
    compute_parts,
    is_parts_folder,
    open_predictor,
    require_one_process,
)
from vitrine.models.sizes import ImageSize
from vitrine.runtime.launch import share_of_work
from vitrine.runtime.output_folder import new_output_folder
from vitrine.runtime.places import Place, delivered, is_remote
from vitrine.runtime.progress import announced, present, quiet
from vitrine.runtime.result import Result
from vitrine.serving.output_files import FEATURE_KINDS, require_kind, write_features
from vitrine.serving.predictor import Predictor
from vitrine.spelling import printable

FILE = "features.npy"


@dataclass(frozen=True, kw_only=True, repr=False)
class EmbedResult(Result):
    """The number of feature vectors, and their files."""

    model: str
    num_pictures: int
    width: int
    unreadable: dict[str, str]
    """Pictures that cannot be read, and why; the first few where parts were written."""
    wrote: tuple[Place, ...]
    parts: PartsResult | None = None
    """The parts that this process wrote, if the output is a folder of parts."""
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 if the command is strict and a picture could not be read."""
        return int(self.is_strict and bool(self.unreadable))


def embed_pictures(
    model: str | None,
    pictures: Iterable[Any],
    *,
    out: Place | None,
    part: str | None,
    part_size: int | None,
    engine: EngineName,
    has_tokens: bool,
    store: Store,
    image_size: ImageSize,
    batch_size: int | None,
    workers: int | None,
    device: str,
    precision: Wish,
    is_strict: bool,
    is_overwriting: bool,
) -> EmbedResult:
    """Compute the features of all pictures and write them to `out`: one file, or a folder of parts."""
    name, source = opened_pictures("embed", model, pictures, out=out, device=device)
    share, is_folder = share_of_work(part), is_parts_folder(out)
    if not is_folder:
        require_one_process(share, out, kinds=FEATURE_KINDS)
        if has_tokens or store != "float32":
            raise ConfigError("needs a folder of parts", option="tokens" if has_tokens else "store")
    if out is not None and not is_folder:
        require_kind(out, FEATURE_KINDS, is_overwriting=is_overwriting)
    predictor = open_predictor(
        name,
        num_pictures=len(source),
        device=device,
        precision=precision,
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
    )
    present(plan_of(predictor, source, name))
    if is_folder and out is not None:
        columns = Columns(
            top=int(bool(predictor.num_classes)),
            has_embedding=True,
            has_tokens=has_tokens,
            has_labels=source.is_labelled,
            store=store,
        )
        parts_result = compute_parts(
            predictor, source, model=name, out=out, columns=columns, part_size=part_size, share=share, engine=engine,
            is_overwriting=is_overwriting, what="Embedding",
        )  # fmt: skip
        return EmbedResult(
            model=name,
            num_pictures=parts_result.num_computed + parts_result.num_skipped,
            width=output_shapes(predictor, columns)[EMBEDDING][0],
            unreadable={printable(key): why for key, why in parts_result.unreadable.items()},
            wrote=(parts_result.folder,),
            parts=parts_result,
            is_strict=is_strict,
        )
    return _one_file(predictor, source, model=name, out=out, is_strict=is_strict, words=(model, pictures))


def _one_file(
    predictor: Predictor,
    source: Source,
    *,
    model: str,
    out: Place | None,
    is_strict: bool,
    words: tuple[str | None, Iterable[Any]],
) -> EmbedResult:
    """Compute all features in memory and write them to one file."""
    parts: list[torch.Tensor] = []
    failures: dict[int, str] = {}
    pace = Pace()
    with announced("Embedding", total=len(source)) as advance:
        for rows in predictor.stream(source, wanted="features", pace=pace):
            parts.append(rows.values)
            failures |= {rows.start + row: why for row, why in rows.failures.items()}
            advance(len(rows.values), str(pace))
    if len(failures) == len(source):
        raise DataError(f"no picture can be read; the first: {failures[0]}")
    values = torch.cat(parts).numpy()  # (N, R)
    names = [source.name(index) for index in range(len(source))]
    place = out if out is not None else new_output_folder(None, verb="embed", files=(FILE,)) / FILE
    with delivered(place) as file:
        wrote = write_features(
            file, values, names=names, failures=failures, labels=label_names(source, *words)
        )
    folder = str(place).rpartition("/")[0]
    return EmbedResult(
        model=model,
        num_pictures=len(source),
        width=values.shape[1],
        unreadable={printable(names[index]): why for index, why in failures.items()},
        wrote=tuple(f"{folder}/{file.name}" for file in wrote) if is_remote(place) else wrote,
        is_strict=is_strict,
    )


def label_names(source: Source, model: str | None, pictures: Iterable[Any]) -> list[str] | None:
    """Return the label of each picture, from the data set that contains it; None without labels.

    Pictures of a folder are listed as files; the class folders or the table around them know their labels.
    """
    if source.is_labelled:
        return [label_text(source, index) for index in range(len(source))]
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
        str(path): label_text(split, index)
        for split in splits.values()
        for index in range(len(split))
        if (path := split.path(index)) is not None
    }
