"""The work behind `vitrine predict` for models of objects: COCO results, a table, overlays, and masks if any."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrine.checkpoints import load
from vitrine.checkpoints.loading import class_names
from vitrine.data.decoding.coco_masks import encode_segmentation
from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.mask_file import as_palette
from vitrine.data.decoding.mask_planes import mask_areas, mask_in
from vitrine.data.sources.source import Source
from vitrine.evaluation.box_predictions import predict_boxes
from vitrine.evaluation.objects import BoxPrediction, with_sides
from vitrine.evaluation.outputs import Wish, chosen_precision
from vitrine.jobs.prediction_files import exit_code_of, save_picture, unique_stems
from vitrine.models.dense.config import DenseConfig
from vitrine.models.sizes import ImageSize
from vitrine.reports.box_drawing import drawn, numbered
from vitrine.runtime.devices import choose_device
from vitrine.runtime.files import write_atomically, write_table
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import announced
from vitrine.runtime.result import Result
from vitrine.spelling import printable

DETECTIONS, PICTURES, OVERLAYS, TABLE = "detections.json", "pictures.json", "overlays", "predictions.csv"
MASKS = "masks"
BOX_COLUMNS = ("path", "class", "score", "left", "top", "right", "bottom")
# The number of an object is its value in the mask of the picture.
MASK_COLUMNS = ("number", "pixels")
# Objects of at least this score are drawn, counted and listed in the table; the JSON has all: its score needs them.
SURE_SCORE = 0.3


@dataclass(frozen=True, kw_only=True, repr=False)
class BoxPredictions(Result):
    """The files of boxes or of masks of objects, and how many objects of each class were found."""

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
        return exit_code_of(self.num_errors, num_pictures=self.num_pictures, is_strict=self.is_strict)


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
    """Write COCO results of all pictures, the pictures and classes that they number, a table, overlays and masks."""
    loaded = load(model, image_size=image_size)
    config = loaded.model.config
    assert isinstance(config, DenseConfig)
    has_masks = config.answers == "instances"
    folders = (OVERLAYS, MASKS) if has_masks else (OVERLAYS,)
    classes = class_names(loaded)
    folder = new_output_folder(
        out, verb="predict", files=(DETECTIONS, PICTURES, TABLE, *folders), is_overwriting=is_overwriting
    )
    place = choose_device(device)
    with removed_if_empty(folder):
        for name in folders:
            (folder / name).mkdir(exist_ok=True)
        with (
            write_table(folder / TABLE) as table,
            announced("Predicting", total=len(source)) as advance,
        ):
            outputs = DetectionFiles(folder, source, classes, table, has_masks=has_masks)
            for prediction in predict_boxes(
                loaded.model.to(place), source, preprocess=loaded.preprocess, device=place,
                num_workers=2 if workers is None else workers, precision=chosen_precision(precision, place),
                config=config,
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
        wrote=tuple(folder / name for name in (DETECTIONS, PICTURES, TABLE, *folders)),
        is_strict=is_strict,
    )


class DetectionFiles:
    """The files of predicted objects, filled one picture at a time."""

    def __init__(
        self, folder: Path, source: Source, classes: tuple[str, ...], table: Any, *, has_masks: bool
    ) -> None:
        self.folder, self.source, self.classes = folder, source, classes
        self.stems = unique_stems([source.name(index) for index in range(len(source))])
        self.results, self.pictures = list[dict[str, Any]](), list[dict[str, Any]]()
        self.counts, self.num_errors = np.zeros(len(classes), dtype=np.int64), 0
        self.table = table
        self.columns = (*BOX_COLUMNS, *(MASK_COLUMNS if has_masks else ()))
        self.table.writerow([*self.columns, "error"])

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
            self.table.writerow([name, *[""] * (len(self.columns) - 1), prediction.error])
            return
        sure = prediction.first(int((prediction.scores >= SURE_SCORE).sum()))
        self.counts += np.bincount(sure.labels, minlength=len(self.classes))
        self.add_rows(name, sure)
        pixels, stem = (
            decode(self.source.read(prediction.index).data, name=name),
            self.stems[prediction.index],
        )
        overlay = drawn(
            pixels, sure.boxes, sure.labels, classes=self.classes, scores=sure.scores, planes=sure.planes
        )
        save_picture(self.folder / OVERLAYS / f"{stem}.jpg", Image.fromarray(overlay))
        if sure.planes is not None:
            mask = as_palette(numbered(sure.planes, len(sure.labels)))
            save_picture(self.folder / MASKS / f"{stem}.png", mask)

    def add_rows(self, name: str, sure: BoxPrediction) -> None:
        """Write a picture's rows of the table."""
        areas = None if sure.planes is None else mask_areas(sure.planes, len(sure.labels))
        for place, (box, label, score) in enumerate(
            zip(sure.boxes.tolist(), sure.labels, sure.scores, strict=True)
        ):
            sides = (f"{side:.1f}" for side in box)
            of_mask = () if areas is None else (place + 1, int(areas[place]))
            self.table.writerow([name, printable(self.classes[label]), f"{score:.4f}", *sides, *of_mask, ""])

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


def coco_rows(prediction: BoxPrediction) -> list[dict[str, Any]]:
    """Return the objects of a picture as COCO results, with boxes or masks; pictures and classes count from 1.

    pycocotools takes the sizes of objects from boxes if there are any, so masks are without them.
    """
    rows: list[dict[str, Any]] = [
        {
            "image_id": prediction.index + 1, "category_id": int(label) + 1,
            "bbox": [round(side, 2) for side in box], "score": round(float(score), 5),
        }
        for box, label, score in zip(
            with_sides(prediction.boxes).tolist(), prediction.labels, prediction.scores, strict=True
        )
    ]  # fmt: skip
    if prediction.planes is not None:
        for place, row in enumerate(rows):
            del row["bbox"]
            row["segmentation"] = encode_segmentation(mask_in(prediction.planes, place))
    return rows
