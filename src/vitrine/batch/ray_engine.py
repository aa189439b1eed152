"""The engine of a Ray cluster: Ray Data decodes on all CPUs of its nodes and computes in actors, one per GPU.

A row of the data set is a whole batch, so that batches hold the same pictures as in one process and the results are
the same. They arrive in order at the process that started the job, which writes the parts: what is finished stays
finished whatever happens to the cluster.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from vitrine.batch.columns import Columns, compute
from vitrine.data.loading.filling import Task, fill, one_thread
from vitrine.data.loading.order import Rows
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source
from vitrine.evaluation.streaming import Computed, Pace
from vitrine.models import ViTConfig
from vitrine.models.sizes import InputShape
from vitrine.runtime.optional import optional
from vitrine.serving.predictor import Predictor

Row = dict[str, Any]


def import_ray() -> Any:
    """Import Ray with Ray Data, or raise an error that says how to install it."""
    optional("ray.data", extra="ray", purpose="the engine ray")
    return optional("ray", extra="ray", purpose="the engine ray")


def compute_with_ray(
    predictor: Predictor, source: Source, columns: Columns, rows: Iterator[Rows], pace: Pace, *, model: str
) -> Iterator[Computed]:
    """Compute batches of rows on the nodes of a Ray cluster, in order; without one, Ray starts on this machine."""
    ray = import_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False)  # $RAY_ADDRESS names a cluster
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    batches = [{"first": int(one.indices[0]), "count": len(one.indices)} for one in rows]
    if not batches:
        return
    nodes = ray.cluster_resources()
    num_gpus = int(nodes.get("GPU", 0)) if predictor.device.type == "cuda" else 0
    settings = {
        "model": model,
        "precision": predictor.precision,
        "image_size": shape_of(predictor),
        "columns": columns,
    }
    stream = (
        ray.data.from_items(batches, override_num_blocks=min(len(batches), 4096))
        .map(read_batch, fn_kwargs={"source": ray.put(source), "view": predictor.preprocess}, num_cpus=1)
        .map(
            ComputeBatch,
            fn_constructor_kwargs=settings,
            concurrency=num_gpus or max(1, len(ray.nodes())),
            num_gpus=1 if num_gpus else 0,
        )
    )
    yield from pace.timed(map(_computed, stream.iter_rows()))


def shape_of(predictor: Predictor) -> InputShape:
    """Return the input shape of the predictor's model, in which workers elsewhere open it again."""
    preprocess, config = predictor.preprocess, predictor.model.config
    is_native = preprocess.max_patches is not None
    return InputShape(
        size=None if is_native else preprocess.size,
        patch=config.patch_size[0] if isinstance(config, ViTConfig) and config.stem is None else None,
        max_patches=preprocess.max_patches,
    )


def read_batch(row: Row, *, source: Any, view: Preprocess) -> Row:
    """Read and decode the pictures of one batch, in a task on any CPU."""
    ray = import_ray()
    listed: Source = ray.get(source) if isinstance(source, ray.ObjectRef) else source
    pixels = torch.empty(row["count"], *view.shape, dtype=torch.uint8)
    indices = np.arange(row["first"], row["first"] + row["count"], dtype=np.int64)
    with one_thread():
        notes = fill(
            pixels,
            Task(start=0, indices=indices, numbers=None, wants_digests=True),
            source=listed,
            view=view,
        )
    return {
        **row,
        "pixels": pixels.numpy().tobytes(),
        "failures": json.dumps(notes.failures),
        "digests": json.dumps(notes.digests),
    }


class ComputeBatch:
    """The model in an actor, loaded once."""

    def __init__(self, *, model: str, precision: Any, image_size: InputShape, columns: Columns) -> None:
        self.predictor = Predictor.open(model, precision=precision, image_size=image_size)
        self.columns = columns

    def __call__(self, row: Row) -> Row:
        """Compute the outputs of one batch."""
        preprocess = self.predictor.preprocess
        pixels = np.frombuffer(row.pop("pixels"), dtype=np.uint8).copy()
        images = torch.from_numpy(pixels).view(row["count"], preprocess.channels, *preprocess.size)
        outputs = compute(self.predictor, images.to(self.predictor.device), self.columns)
        for name, value in outputs.items():
            array = value.float().cpu().numpy()
            row[f"values.{name}"] = array.tobytes()
            row[f"shape.{name}"] = json.dumps(array.shape)
        return row


def _computed(row: Mapping[str, Any]) -> Computed:
    values = {}
    for name in (key.removeprefix("values.") for key in row if key.startswith("values.")):
        flat = np.frombuffer(row[f"values.{name}"], dtype=np.float32).copy()
        values[name] = torch.from_numpy(flat).view(json.loads(row[f"shape.{name}"]))
    failures = {int(key): why for key, why in json.loads(row["failures"]).items()}
    for value in values.values():
        value[list(failures)] = 0
    digests = {int(key): digest for key, digest in json.loads(row["digests"]).items()}
    return Computed(start=row["first"], values=values, failures=failures, digests=digests)
