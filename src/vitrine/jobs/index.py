"""The work behind `vitrine index`: feature vectors of pictures in an index on disk, built and brought up to date."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.batch.index_segment import IndexRecord, Named, key_of, unit
from vitrine.batch.parts import JOB, PartFolder
from vitrine.batch.vector_index import RECORD, VectorIndex
from vitrine.data.sources.arrow import import_pyarrow
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import ConfigError, TryOption
from vitrine.evaluation.features import weights_hash
from vitrine.evaluation.outputs import Wish
from vitrine.evaluation.streaming import Pace
from vitrine.jobs.model_argument import opened_pictures, plan_of
from vitrine.jobs.parts_job import open_predictor
from vitrine.models.sizes import ImageSize, shape_json
from vitrine.runtime.optional import optional
from vitrine.runtime.progress import announced, present, track
from vitrine.runtime.result import Result
from vitrine.serving.predictor import Predictor
from vitrine.spelling import printable

SUFFIX = ".index"
_GROUP = 4096


@dataclass(frozen=True, kw_only=True, repr=False)
class IndexResult(Result):
    """The contents of an index, and the changes."""

    folder: Path
    model: str
    num_pictures: int
    width: int
    num_added: int
    num_removed: int
    """Pictures that are gone or have changed since the index was last brought up to date."""
    num_unchanged: int
    unreadable: dict[str, str]
    """The first few pictures that cannot be read, and why."""
    num_unreadable: int


def index_pictures(
    model: str | None,
    pictures: Iterable[Any],
    *,
    out: Path | None,
    image_size: ImageSize,
    batch_size: int | None,
    workers: int | None,
    device: str,
    precision: Wish,
    is_overwriting: bool,
) -> IndexResult:
    """Add new and changed pictures to the index in `out`, and remove those that are gone."""
    optional("faiss", extra="search", purpose="a search index")
    words = [
        one for one in (model, *(pictures if isinstance(pictures, tuple) else ())) if isinstance(one, str)
    ]
    if len(words) == 1 and (Path(words[0]) / JOB).is_file():
        return _of_parts(Path(words[0]), out=out, is_overwriting=is_overwriting)
    folder = out or Path(Path(words[-1].rstrip("/") if words else "pictures").stem + SUFFIX)
    name, source = opened_pictures("index", model, pictures, out=folder, device=device)
    predictor = open_predictor(
        name, num_pictures=len(source), device=device, precision=precision, image_size=image_size,
        batch_size=batch_size, workers=workers,
    )  # fmt: skip
    present(plan_of(predictor, source, name))
    index = opened_or_new(
        folder,
        IndexRecord(
            model=name,
            weights=weights_hash(predictor.model),
            precision=predictor.precision,
            width=int(next(iter(predictor.embed([_black(predictor)]).rows)).numel()),
            shape=shape_json(image_size),
        ),
        is_overwriting=is_overwriting,
    )
    keys = np.array(
        [key_of(*facts) for facts in track(_facts(source), "Looking for changes", total=len(source))]
    )
    unreadable: dict[str, str] = {}
    rows, gone = _changes(index, keys)
    added = index.add(_embedded(predictor, source, rows, keys, unreadable))
    index.remove(gone)
    return _result(index, num_added=added, num_removed=len(gone), unreadable=unreadable, total=len(source))


def opened_or_new(folder: Path, record: IndexRecord, *, is_overwriting: bool) -> VectorIndex:
    """Open the index in a folder, or begin one; vectors of different models cannot be compared."""
    if not (folder / RECORD).is_file():
        return VectorIndex(folder, record)
    if is_overwriting:
        for file in folder.iterdir():
            if file.suffix in (".faiss", ".parquet", ".npy") or file.name == RECORD:
                file.unlink()
        return VectorIndex(folder, record)
    index = VectorIndex.open(folder)
    is_same = (index.record.weights, index.record.width) == (record.weights, record.width)
    if not is_same or index.record.shape != record.shape:
        raise ConfigError(
            f"{printable(str(folder))} holds vectors of another model ({index.record.model}), or of another "
            "input shape",
            option="out",
            advice=[TryOption("overwrite", "to build it again with this one", True)],
        )
    return index


def _of_parts(folder: Path, *, out: Path | None, is_overwriting: bool) -> IndexResult:
    """Build an index from the embeddings that `vitrine embed` wrote."""
    parts = PartFolder.open(folder)
    records = parts.finished()
    if missing := parts.missing():
        raise ConfigError(f"{printable(str(folder))} lacks {len(missing)} of its {parts.job.num_parts} parts")
    parquet = import_pyarrow("a search index", extra="search").parquet
    files = [folder / record.file for _, record in sorted(records.items())]
    schema = parquet.read_schema(files[0])
    if "embedding" not in schema.names:
        raise ConfigError(f"{printable(str(folder))} holds no embeddings; run embed, not predict")
    record = IndexRecord(
        model=parts.job.model, weights=parts.job.weights, precision=parts.job.precision,
        width=schema.field("embedding").type.list_size,
    )  # fmt: skip
    index = opened_or_new(
        out or folder.with_name(folder.name + SUFFIX), record, is_overwriting=is_overwriting
    )
    known, numbers = index.live_keys()
    seen: list[NDArray[np.int64]] = []

    def chunks() -> Iterator[Named]:
        for file in track(files, "Indexing parts"):
            for batch in parquet.ParquetFile(file).iter_batches(
                batch_size=_GROUP, columns=["path", "sha256", "embedding"]
            ):
                rows = batch.filter(batch["embedding"].is_valid())
                names = rows["path"].to_pylist()
                keys = np.array(
                    [key_of(*pair) for pair in zip(names, rows["sha256"].to_pylist(), strict=True)],
                    dtype=np.int64,
                )
                seen.append(keys)
                new = np.flatnonzero(~np.isin(keys, known))
                vectors = rows["embedding"].flatten().to_numpy().reshape(len(names), -1)
                if len(new):
                    yield Named(vectors=unit(vectors[new]), names=[names[row] for row in new], keys=keys[new])

    added = index.add(chunks())
    every = np.concatenate([np.zeros(0, dtype=np.int64), *seen])
    gone = numbers[~np.isin(known, every)]
    index.remove(gone)
    unreadable = sum(record.num_unreadable for record in records.values())
    return _result(
        index, num_added=added, num_removed=len(gone), unreadable={}, total=parts.job.num_pictures,
        num_unreadable=unreadable,
    )  # fmt: skip


def _facts(source: Source) -> Iterator[tuple[str, str]]:
    """Yield name and version of each picture: its size, and its time where it is a file."""
    for index in range(len(source)):
        path = source.path(index)
        try:
            status = None if path is None else os.stat(path)  # noqa: PTH116 (called for every file)
            facts = str(source.size(index)) if status is None else f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            facts = "missing"
        yield source.name(index), facts


def _changes(index: VectorIndex, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the source that are new, and the numbers in the index that are gone."""
    known, numbers = index.live_keys()
    return np.flatnonzero(~np.isin(keys, known)), numbers[~np.isin(known, keys)]


def _embedded(
    predictor: Predictor,
    source: Source,
    rows: NDArray[np.int64],
    keys: NDArray[np.int64],
    unreadable: dict[str, str],
) -> Iterator[Named]:
    if not len(rows):
        return
    new, pace = Subset(source, rows), Pace()
    with announced("Indexing", total=len(new)) as advance:
        for computed in predictor.stream(new, wanted="features", pace=pace):
            good = [row for row in range(len(computed.values)) if row not in computed.failures]
            numbers = [computed.start + row for row in good]
            unreadable |= {new.name(computed.start + row): why for row, why in computed.failures.items()}
            yield Named(
                vectors=unit(computed.values[good].numpy()),
                names=[printable(new.name(number)) for number in numbers],
                keys=keys[rows[numbers]],
            )
            advance(len(computed.values), str(pace))


def _black(predictor: Predictor) -> NDArray[np.uint8]:
    return np.zeros((*predictor.preprocess.size, 3), dtype=np.uint8)


def _result(
    index: VectorIndex,
    *,
    num_added: int,
    num_removed: int,
    unreadable: dict[str, str],
    total: int,
    num_unreadable: int | None = None,
) -> IndexResult:
    failed = len(unreadable) if num_unreadable is None else num_unreadable
    return IndexResult(
        folder=index.folder,
        model=index.record.model,
        num_pictures=len(index) - len(index.removed),
        width=index.record.width,
        num_added=num_added,
        num_removed=num_removed,
        num_unchanged=total - num_added - failed,
        unreadable={printable(name): why for name, why in list(unreadable.items())[:5]},
        num_unreadable=failed,
    )
