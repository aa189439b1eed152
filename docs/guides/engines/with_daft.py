"""Pictures of a folder or bucket through a model, on Daft: python with_daft.py MODEL PHOTOS OUT."""

import sys

import daft
from daft import DataType, Series, col

from vitrine import BatchPredictor

KIND = DataType.struct(
    {
        "predicted": DataType.string(),
        "confidence": DataType.float32(),
        "embedding": DataType.list(DataType.float32()),
        "error": DataType.string(),
    }
)


@daft.cls
class Predicted:
    """The model; one per process."""

    def __init__(self, model: str) -> None:
        self.predictor = BatchPredictor(model)

    @daft.method.batch(return_dtype=KIND, batch_size=256)
    def rows(self, path: Series, content: Series) -> list[dict[str, object]]:
        """Compute the rows of one batch."""
        columns = self.predictor({"path": path.to_pylist(), "bytes": content.to_pylist()})
        return [
            dict(zip(columns, row, strict=True))
            for row in zip(*(column.tolist() for column in columns.values()), strict=True)
        ]


if __name__ == "__main__":
    model, photos, out = sys.argv[1:]
    files = daft.from_glob_path(f"{photos}/**/*.jpg").with_column("content", col("path").download())
    answers = files.select("path", Predicted(model).rows(col("path"), col("content")).alias("answer"))
    answers.select("path", col("answer").unnest()).write_parquet(out)
