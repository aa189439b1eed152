"""Pictures through a model into numbered parts: what `vitrine embed` and `vitrine predict` share."""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from vitrine.batch.columns import Columns, schema_of, table_of
from vitrine.batch.local_engine import compute_here
from vitrine.batch.parts import Job, PartFolder, default_part_size
from vitrine.batch.ray_engine import compute_with_ray, import_ray
from vitrine.batch.writing import Progress, metadata_of, write_parts
from vitrine.checkpoints import Loaded
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.features import weights_hash
from vitrine.evaluation.outputs import Wish, at_a_time_alone, chosen_precision
from vitrine.evaluation.streaming import chosen_workers
from vitrine.models.sizes import ImageSize
from vitrine.runtime.devices import choose_device
from vitrine.runtime.launch import Share, launched
from vitrine.runtime.places import Place, is_remote, suffix_of
from vitrine.serving.predictor import Predictor
from vitrine.spelling import printable


@dataclass(frozen=True, kw_only=True)
class PartsResult:
    """The parts of a folder that one process wrote."""

    folder: str
    num_parts: int
    """In all, over all processes."""
    own_parts: tuple[int, int]
    """Numbers of this process's parts, from 0: the first one and the one after the last."""
    num_computed: int
    num_skipped: int
    """Pictures whose parts were finished by an earlier run."""
    num_unreadable: int
    unreadable: dict[str, str]
    """The first few pictures that cannot be read, and why."""
    rate: float
    """Pictures per second."""
    waiting: float
    """Fraction of the time in which the model waited for data."""
    manifest: str | None
    """None while parts of other processes are missing."""


EngineName = Literal["local", "ray"]
ENGINES = {"local": compute_here, "ray": compute_with_ray}


def open_predictor(
    model: str | Loaded,
    *,
    num_pictures: int,
    device: str,
    precision: Wish,
    image_size: ImageSize,
    batch_size: int | None,
    workers: int | None,
) -> Predictor:
    """Open a model for many pictures; on a GPU with bf16, large batches and processes that decode."""
    place = choose_device(device, launched().local_rank)
    count, kind = chosen_workers(workers, device=place, num_pictures=num_pictures)
    predictor = Predictor.open(
        model,
        device=str(place),
        precision=chosen_precision(precision, place),
        image_size=image_size,
        batch_size=batch_size,
        workers=count,
        worker_kind=kind,
    )
    if batch_size is None:
        predictor.batch_size = at_a_time_alone(place, predictor.preprocess.size)
    return predictor


def is_parts_folder(out: Place | None) -> bool:
    """Whether results go into a folder of parts: a name without a suffix, or a folder that exists."""
    if out is None:
        return False
    return suffix_of(out) == "" or (not is_remote(out) and not isinstance(out, str) and out.is_dir())


def require_one_process(share: Share, out: Place | None, *, kinds: Sequence[str]) -> None:
    """Refuse a single file, or none, where several processes share the work."""
    if share.count > 1:
        shown_out = "none" if out is None else str(out)
        raise ConfigError(
            f"{share.count} processes write a folder of parts; name a folder instead of {printable(shown_out)} "
            f"({', '.join(kinds)} can only be written by one process)",
            option="out",
        )


def compute_parts(
    predictor: Predictor,
    source: Source,
    *,
    model: str,
    out: Place,
    columns: Columns,
    part_size: int | None,
    share: Share,
    engine: EngineName,
    is_overwriting: bool,
    what: str,
) -> PartsResult:
    """Compute this process's parts that are not finished, and join the manifest if they were the last."""
    if engine == "ray":
        import_ray()  # before anything is written
    job = Job(
        model=model,
        weights=weights_hash(predictor.model, includes_head=True),
        preprocess=predictor.preprocess.to_json(),
        precision=predictor.precision,
        columns=asdict(columns),
        batch_size=predictor.batch_size,
        num_pictures=len(source),
        part_size=part_size or default_part_size(len(source)),
    )
    schema = schema_of(columns, predictor, metadata=metadata_of(job))
    parts = PartFolder.begin(out, job, share=share, is_overwriting=is_overwriting)
    done: Progress = write_parts(
        parts,
        source,
        share=share,
        engine=functools.partial(ENGINES[engine], predictor, source, columns, model=model),
        schema=schema,
        table_of=functools.partial(
            table_of, source=source, columns=columns, predictor=predictor, schema=schema
        ),
        what=what,
    )
    own = share.of(job.num_parts)
    return PartsResult(
        folder=parts.folder.address,
        num_parts=job.num_parts,
        own_parts=(own.start, own.stop),
        num_computed=done.num_computed,
        num_skipped=done.num_skipped,
        num_unreadable=done.num_unreadable,
        unreadable=done.unreadable,
        rate=done.pace.rate,
        waiting=done.pace.waiting,
        manifest=None if parts.missing() else parts.write_manifest(parts.finished()),
    )
