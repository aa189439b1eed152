"""The work behind `vitrine predict` for a detector: COCO results, a table, and overlays."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrine.checkpoints import Loaded, load
from vitrine.data.decoding.decode import decode
from vitrine.data.sources.source import Source
from vitrine.evaluation.box_predictions import BoxPrediction, predict_boxes, with_sides
from vitrine.evaluation.outputs import Wish, chosen_precision
from vitrine.jobs.predict_masks import save_picture, unique_stems
from vitrine.models.dense.config import DenseConfig
from vitrine.models.sizes import ImageSize
from vitrine.reports.box_drawing import drawn
from vitrine.runtime.devices import choose_device
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import announced
from vitrine.runtime.result import Result
from vitrine.spelling import printable

DETECTIONS, PICTURES, OVERLAYS, TABLE = "detections.json", "pictures.json", "overlays", "predictions.csv"
# Boxes of at least this score are drawn, counted and listed in the table; the JSON has all, as its score needs them.
SURE_SCORE = 0.3


@dataclass(frozen=True, kw_only=True, repr=False)
class BoxPredictions(Result):
    """The files of boxes, and how many objects of each class were found."""

    model: str
    num_classes: int
    num_pictures: int
    num_errors: int
    counts: dict[str, int]
    """Objects of a score of at least 0.3 per class, most first; classes that were not found are missing."""
    wrote: tuple[Path, ...]
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 where no picture could be read, or, if strict, any could not."""
        return int(self.num_errors == self.num_pictures or (self.is_strict and self.num_errors > 0))


def predict_objects(
    model: str,
    source: Source,
    *,
    out: Path | None,
    image_size: ImageSize,
    workers: int | None,
    device: str,
    precision: Wish,
    is_strict: bool,
    is_overwriting: bool,
) -> BoxPredictions:
    """Write COCO results of all pictures, the pictures and classes that they number, a table, and overlays."""
    loaded = load(model, image_size=image_size)
    classes = loaded.classes or tuple(
        f"class {number}" for number in range(loaded.model.config.num_classes or 0)
    )
    folder = new_output_folder(
        out, verb="predict", files=(DETECTIONS, PICTURES, OVERLAYS, TABLE), is_overwriting=is_overwriting
    )
    place = choose_device(device)
    stems = unique_stems([source.name(index) for index in range(len(source))])
    results, pictures = list[dict[str, Any]](), list[dict[str, Any]]()
    counts, num_errors = np.zeros(len(classes), dtype=np.int64), 0
    with removed_if_empty(folder):
        (folder / OVERLAYS).mkdir(exist_ok=True)
        with (
            write_atomically(folder / TABLE, mode="w") as file,
            announced("Predicting", total=len(source)) as advance,
        ):
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["path", "class", "score", "left", "top", "right", "bottom", "error"])
            for prediction in predict_boxes(
                loaded.model.to(place), source, preprocess=loaded.preprocess, device=place,
                num_workers=2 if workers is None else workers, precision=chosen_precision(precision, place),
                has_duplicates=has_duplicates(loaded),
            ):  # fmt: skip
                name = printable(source.name(prediction.index))
                height, width = prediction.size
                pictures.append(
                    {"id": prediction.index + 1, "file_name": name, "height": height, "width": width}
                )
                results += coco_rows(prediction)
                if prediction.error is not None:
                    num_errors += 1
                    table.writerow([name, *[""] * 6, prediction.error])
                    advance(1, "")
                    continue
                is_sure = prediction.scores >= SURE_SCORE
                counts += np.bincount(prediction.labels[is_sure], minlength=len(classes))
                for box, label, score in zip(
                    prediction.boxes[is_sure].tolist(),
                    prediction.labels[is_sure],
                    prediction.scores[is_sure],
                    strict=True,
                ):
                    sides = (f"{side:.1f}" for side in box)
                    table.writerow([name, printable(classes[label]), f"{score:.4f}", *sides, ""])
                pixels = decode(source.read(prediction.index).data, name=name)
                overlay = drawn(
                    pixels, prediction.boxes[is_sure], prediction.labels[is_sure], classes=classes,
                    scores=prediction.scores[is_sure],
                )  # fmt: skip
                save_picture(folder / OVERLAYS / f"{stems[prediction.index]}.jpg", Image.fromarray(overlay))
                advance(1, "")
        categories = [{"id": number + 1, "name": name} for number, name in enumerate(classes)]
        for name, values in (
            (DETECTIONS, results),
            (PICTURES, {"images": pictures, "categories": categories, "annotations": []}),
        ):
            with write_atomically(folder / name, mode="w") as file:
                json.dump(values, file, allow_nan=False)
                file.write("\n")
    order = np.argsort(-counts, kind="stable")
    return BoxPredictions(
        model=model,
        num_classes=len(classes),
        num_pictures=len(source),
        num_errors=num_errors,
        counts={printable(classes[number]): int(counts[number]) for number in order if counts[number]},
        wrote=tuple(folder / name for name in (DETECTIONS, PICTURES, TABLE, OVERLAYS)),
        is_strict=is_strict,
    )


def has_duplicates(loaded: Loaded) -> bool:
    """Whether several answers of a model may be about one object."""
    config = loaded.model.config
    assert isinstance(config, DenseConfig)
    return config.has_duplicates


def coco_rows(prediction: BoxPrediction) -> list[dict[str, Any]]:
    """Return the boxes of a picture as COCO results; pictures and classes are numbered from 1."""
    return [
        {
            "image_id": prediction.index + 1, "category_id": int(label) + 1,
            "bbox": [round(side, 2) for side in box], "score": round(float(score), 5),
        }
        for box, label, score in zip(
            with_sides(prediction.boxes).tolist(), prediction.labels, prediction.scores, strict=True
        )
    ]  # fmt: skip
