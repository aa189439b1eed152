"""The engine of one process: a loader that decodes ahead of the model."""

from collections.abc import Iterator

from vitrine.batch.columns import Columns, compute
from vitrine.data.loading.order import Rows
from vitrine.data.sources.source import Source
from vitrine.evaluation.streaming import Computed, Pace, open_loader, stream
from vitrine.serving.predictor import Predictor


def compute_here(
    predictor: Predictor, source: Source, columns: Columns, rows: Iterator[Rows], pace: Pace, *, model: str
) -> Iterator[Computed]:
    """Compute batches of rows in this process, in order; the workers read ahead from one part to the next.

    Engines elsewhere open the model by its name, `model`; here it is open.
    """
    with open_loader(
        source,
        predictor.preprocess,
        batch_size=predictor.batch_size,
        num_workers=predictor.workers,
        worker_kind=predictor.worker_kind,
        device=predictor.device,
        wants_digests=True,
    ) as loader:
        yield from stream(loader, lambda pixels: compute(predictor, pixels, columns), rows, pace=pace)
