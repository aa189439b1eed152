"""Pictures of a folder or bucket through a model, on Dask: python with_dask.py MODEL PHOTOS OUT [SCHEDULER]."""

import sys

import dask.dataframe as dd
import fsspec
import pandas as pd
import pyarrow
from distributed import Client, get_worker

from vitrine import BatchPredictor

META = {"path": str, "predicted": str, "confidence": "f4", "embedding": object, "error": str}
KINDS = (
    pyarrow.string(),
    pyarrow.string(),
    pyarrow.float32(),
    pyarrow.list_(pyarrow.float32()),
    pyarrow.string(),
)
SCHEMA = pyarrow.schema(zip(META, KINDS, strict=True))


def predicted(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    """Compute the rows of one partition; each worker process loads the model once."""
    worker = get_worker()
    if not hasattr(worker, "predictor"):
        worker.predictor = BatchPredictor(model)
    columns = worker.predictor({"path": frame["path"]})
    return pd.DataFrame({name: list(column) for name, column in columns.items()})[list(META)]


if __name__ == "__main__":
    model, photos, out, *scheduler = sys.argv[1:]
    # One thread per worker: two would compute at once on one device.
    with Client(*scheduler) if scheduler else Client(threads_per_worker=1) as client:
        system, root = fsspec.core.url_to_fs(photos)
        paths = [system.unstrip_protocol(name) for name in sorted(system.glob(f"{root}/**/*.jpg"))]
        files = dd.from_pandas(pd.DataFrame({"path": paths}), chunksize=256)
        files.map_partitions(predicted, model, meta=META).to_parquet(out, schema=SCHEMA, write_index=False)
