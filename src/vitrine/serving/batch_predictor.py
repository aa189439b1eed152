"""The model as a callable on batches of columns, for engines that run such callables: Ray Data, Spark, Dask, Daft.

The callable is small to send (the name of a model and settings) and keeps state: the model is loaded at the first
batch of each process. Pictures may be decoded elsewhere, by `DecodePictures` on machines without a GPU.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.loading.filling import Task, fill, one_thread
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.in_memory import PictureList
from vitrine.errors import DataError
from vitrine.evaluation.outputs import Wish, chosen_precision
from vitrine.models.sizes import ImageSize
from vitrine.runtime.devices import choose_device
from vitrine.serving.answers import Wanted
from vitrine.serving.predictor import Predictor

Columns = dict[str, NDArray[Any]]
PIXELS, ERROR = "pixels", "error"
# In the order in which a picture is looked for in a batch.
PICTURES = ("bytes", "image", "path")


class DecodePictures:
    """Map batches with a column `bytes`, `image` or `path` to ones with `pixels` (C, height, width) and `error`."""

    def __init__(self, preprocess: Preprocess) -> None:
        self.preprocess = preprocess

    def __call__(self, batch: Mapping[str, Any]) -> Columns:
        """Decode the pictures of a batch; one that cannot be read is black and has the reason in `error`."""
        column = next((name for name in PICTURES if name in batch), None)
        if column is None:
            raise DataError(f"a batch needs a column {', '.join(PICTURES)} or pixels, got {', '.join(batch)}")
        pictures = list(batch[column])
        names = [str(name) for name in batch["path"]] if "path" in batch else None
        source = PictureList(pictures, names=names)
        pixels = torch.empty(len(pictures), *self.preprocess.shape, dtype=torch.uint8)
        task = Task(start=0, indices=np.arange(len(pictures)), numbers=None)
        with one_thread():
            notes = fill(pixels, task, source=source, view=self.preprocess)
        errors = [notes.failures.get(row) for row in range(len(pictures))]
        rest = {
            name: np.asarray(values) for name, values in batch.items() if name != column or name == "path"
        }
        return rest | {PIXELS: pixels.numpy(), ERROR: np.array(errors, dtype=object)}


class BatchPredictor:
    """Map batches of pictures to `predicted`, `confidence`, `embedding` and `error`, keeping their other columns.

    A batch has the column `pixels` that `DecodePictures` wrote, or pictures that are decoded here. Rows that cannot
    be read have an embedding of NaN. The methods of `Predictor` are on `.predictor`.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        precision: Wish = "auto",
        image_size: ImageSize = None,
        has_embedding: bool = True,
        has_classes: bool = True,
    ) -> None:
        self._settings: dict[str, Any] = {"model": str(model), "device": device, "precision": precision}
        self._image_size, self._has_embedding, self._has_classes = image_size, has_embedding, has_classes
        self._predictor: Predictor | None = None

    @property
    def predictor(self) -> Predictor:
        """The model, loaded when it is first needed."""
        if self._predictor is None:
            device = choose_device(self._settings["device"])
            self._predictor = Predictor.open(
                self._settings["model"],
                device=str(device),
                precision=chosen_precision(self._settings["precision"], device),
                image_size=self._image_size,
            )
        return self._predictor

    def __call__(self, batch: Mapping[str, Any]) -> Columns:
        """Compute the columns of one batch."""
        decoded: Mapping[str, Any] = (
            batch if PIXELS in batch else DecodePictures(self.predictor.preprocess)(batch)
        )
        pixels = torch.from_numpy(np.ascontiguousarray(np.stack(list(decoded[PIXELS]))))
        errors = list(decoded.get(ERROR, [None] * len(pixels)))
        columns: Columns = {name: np.asarray(values) for name, values in decoded.items() if name != PIXELS}
        has_classes = self._has_classes and self.predictor.num_classes is not None
        wanted: Wanted = (
            "both" if has_classes and self._has_embedding else "logits" if has_classes else "features"
        )
        values = {
            name: one.float().cpu().numpy()
            for name, one in self.predictor.computed(pixels.to(self.predictor.device), wanted=wanted).items()
        }
        if has_classes:
            best = [
                answers[0]
                for answers in self.predictor.best(torch.from_numpy(values["logits"].copy()), top=1)
            ]
            kept = [None if why else one for one, why in zip(best, errors, strict=True)]
            columns["predicted"] = np.array([one and one.label for one in kept], dtype=object)
            columns["confidence"] = np.array(
                [one.probability if one else np.nan for one in kept], dtype=np.float32
            )
        if self._has_embedding:
            features = values["features"].copy()
            features[[row for row, why in enumerate(errors) if why]] = np.nan
            columns["embedding"] = features
        columns[ERROR] = np.array(errors, dtype=object)
        return columns

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_predictor": None}
