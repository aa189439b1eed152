"""Pictures of a folder or bucket through a model, on Spark: spark-submit with_spark.py MODEL PHOTOS OUT."""

import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession

from vitrine import BatchPredictor

model, photos, out = sys.argv[1:]
SCHEMA = "path string, predicted string, confidence float, embedding array<float>, error string"


def predicted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Compute the rows of one task, which loads the model once."""
    predictor = BatchPredictor(model)
    for frame in frames:
        columns = predictor({"path": frame["path"], "bytes": frame["content"]})
        yield pd.DataFrame({name: list(column) for name, column in columns.items()})


spark = SparkSession.builder.appName("embed").getOrCreate()
# Rows per batch, decoded and computed together.
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 256)
files = spark.read.format("binaryFile").option("pathGlobFilter", "*.jpg").option("recursiveFileLookup", True)
files.load(photos).select("path", "content").mapInPandas(predicted, SCHEMA).write.parquet(out)
