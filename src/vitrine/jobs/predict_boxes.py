"""The work behind `vitrine predict` for a detector: COCO results, a table, and overlays."""

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
from vitrine.runtime.files import write_atomically, write_table
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
        """1 if no picture could be read, or if the command is strict and any could not."""
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
    with removed_if_empty(folder):
        (folder / OVERLAYS).mkdir(exist_ok=True)
        with (
            write_table(folder / TABLE) as table,
            announced("Predicting", total=len(source)) as advance,
        ):
            outputs = DetectionFiles(folder, source, classes, table)
            for prediction in predict_boxes(
                loaded.model.to(place), source, preprocess=loaded.preprocess, device=place,
                num_workers=2 if workers is None else workers, precision=chosen_precision(precision, place),
                has_duplicates=has_duplicates(loaded),
            ):  # fmt: skip
                outputs.add(prediction)
                advance(1, "")
        outputs.write_coco()
    counts = outputs.counts
    order = np.argsort(-counts, kind="stable")
    return BoxPredictions(
        model=model,
        num_classes=len(classes),
        num_pictures=len(source),
        num_errors=outputs.num_errors,
        counts={printable(classes[number]): int(counts[number]) for number in order if counts[number]},
        wrote=tuple(folder / name for name in (DETECTIONS, PICTURES, TABLE, OVERLAYS)),
        is_strict=is_strict,
    )


class DetectionFiles:
    """The files of a detector's predictions, filled one picture at a time."""

    def __init__(self, folder: Path, source: Source, classes: tuple[str, ...], table: Any) -> None:
        self.folder, self.source, self.classes = folder, source, classes
        self.stems = unique_stems([source.name(index) for index in range(len(source))])
        self.results, self.pictures = list[dict[str, Any]](), list[dict[str, Any]]()
        self.counts, self.num_errors = np.zeros(len(classes), dtype=np.int64), 0
        self.table = table
        self.table.writerow(["path", "class", "score", "left", "top", "right", "bottom", "error"])

    def add(self, prediction: BoxPrediction) -> None:
        """Write a picture's rows of the table and its overlay; keep its COCO results."""
        name = printable(self.source.name(prediction.index))
        height, width = prediction.size
        self.pictures.append(
            {"id": prediction.index + 1, "file_name": name, "height": height, "width": width}
        )
        self.results += coco_rows(prediction)
        if prediction.error is not None:
            self.num_errors += 1
            self.table.writerow([name, *[""] * 6, prediction.error])
            return
        is_sure = prediction.scores >= SURE_SCORE
        boxes, labels, scores = (
            prediction.boxes[is_sure], prediction.labels[is_sure], prediction.scores[is_sure],
        )  # fmt: skip
        self.counts += np.bincount(labels, minlength=len(self.classes))
        for box, label, score in zip(boxes.tolist(), labels, scores, strict=True):
            sides = (f"{side:.1f}" for side in box)
            self.table.writerow([name, printable(self.classes[label]), f"{score:.4f}", *sides, ""])
        pixels = decode(self.source.read(prediction.index).data, name=name)
        overlay = drawn(pixels, boxes, labels, classes=self.classes, scores=scores)
        save_picture(self.folder / OVERLAYS / f"{self.stems[prediction.index]}.jpg", Image.fromarray(overlay))

    def write_coco(self) -> None:
        """Write the COCO results, and the pictures and classes that they number."""
        categories = [{"id": number + 1, "name": name} for number, name in enumerate(self.classes)]
        for name, values in (
            (DETECTIONS, self.results),
            (PICTURES, {"images": self.pictures, "categories": categories, "annotations": []}),
        ):
            with write_atomically(self.folder / name, mode="w") as file:
                json.dump(values, file, allow_nan=False)
                file.write("\n")


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
