"""The work behind `vitrine evaluate detections.json annotations.json`: COCO's numbers for any tool's output."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.coco_file import is_number, read_annotations, read_results
from vitrine.data.decoding.coco_masks import decode_segmentation
from vitrine.errors import DataError
from vitrine.evaluation.detection import BoxScore, Detections, Truths, mask_ious, score_boxes
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import new_output_folder
from vitrine.runtime.result import Result
from vitrine.spelling import printable

METRICS = "metrics.json"
MOST_WORST = 5


@dataclass(frozen=True, kw_only=True, repr=False)
class DetectionEvaluation(Result):
    """COCO's twelve numbers, and the average precision per class."""

    detections: str
    annotations: str
    num_images: int
    num_truths: int
    num_detections: int
    numbers: dict[str, float]
    """`AP`, `AP50`, `AP75`, `APs`, `APm`, `APl`, `AR1`, `AR10`, `AR100`, `ARs`, `ARm`, `ARl`; -1 without truths."""
    per_class: dict[str, float]
    worst: tuple[tuple[str, float], ...]
    """Classes with the lowest average precision, lowest first."""
    wrote: tuple[Path, ...]


def evaluate_detections(
    detections: Path, annotations: Path, *, out: Path | None, is_overwriting: bool
) -> DetectionEvaluation:
    """Score COCO results against COCO annotations, as COCO's own evaluation does.

    Results that have masks, with or without boxes, are scored by them.
    """
    truth, rows = read_annotations(annotations), read_results(detections)
    categories = sorted(truth["categories"], key=lambda one: one["id"])
    number = {one["id"]: place for place, one in enumerate(categories)}
    classes = [str(one["name"]) for one in categories]
    pictures = sorted({one["id"] for one in truth["images"]})
    truths: dict[Any, dict[int, list[Mapping[str, Any]]]] = {one: defaultdict(list) for one in pictures}
    detected: dict[Any, dict[int, list[Mapping[str, Any]]]] = {one: defaultdict(list) for one in pictures}
    for where, entries, place in ((annotations, truth["annotations"], truths), (detections, rows, detected)):
        for entry in entries:
            if entry["image_id"] not in place or entry["category_id"] not in number:
                raise DataError(
                    f"{printable(str(where))} names image {entry['image_id']!r} and category "
                    f"{entry['category_id']!r}, which are not both in {printable(str(annotations))}"
                )
            place[entry["image_id"]][number[entry["category_id"]]].append(entry)
    has_masks = bool(rows) and all("segmentation" in row for row in rows)
    if not has_masks and any("bbox" not in row for row in rows):
        raise DataError(f"{printable(str(detections))} has masks in some results only")
    sizes = {one["id"]: size_of(one, where=str(annotations)) for one in truth["images"]} if has_masks else {}

    def pair_of(picture: Any, k: int) -> tuple[Truths, Detections]:
        own, other = truths[picture][k], detected[picture][k]
        if has_masks:
            return pair_of_masks(own, other, sizes[picture], where=f"image {picture!r}")
        return truths_of(own), detections_of(other)

    pairs = [
        {k: pair_of(picture, k) for k in sorted({*truths[picture], *detected[picture]})}
        for picture in pictures
    ]
    folder = new_output_folder(out, verb="evaluate", files=(METRICS,), is_overwriting=is_overwriting)
    score = score_boxes(pairs, classes=classes)
    return written(score, folder, detections=str(detections), annotations=str(annotations))


def written(score: BoxScore, folder: Path, *, detections: str, annotations: str) -> DetectionEvaluation:
    """Write metrics.json; return what it says."""
    facts = {"detections": detections, "annotations": annotations, "num_images": score.num_images}
    with write_atomically(folder / METRICS, mode="w") as file:
        json.dump({**facts, **score.numbers, "per_class": score.per_class}, file, indent=2, allow_nan=False)
        file.write("\n")
    return DetectionEvaluation(
        detections=printable(detections),
        annotations=printable(annotations),
        num_images=score.num_images,
        num_truths=score.num_truths,
        num_detections=score.num_detections,
        numbers=dict(score.numbers),
        per_class=dict(score.per_class),
        worst=tuple(sorted(score.per_class.items(), key=lambda one: one[1])[:MOST_WORST]),
        wrote=(folder / METRICS,),
    )


def truths_of(entries: list[Mapping[str, Any]]) -> Truths:
    """Collect the objects of one class in one picture; without an area, an object has that of its box."""
    boxes = np.array([entry["bbox"] for entry in entries], dtype=np.float64).reshape(-1, 4)
    areas = [
        entry["area"] if is_number(entry.get("area")) else entry["bbox"][2] * entry["bbox"][3]
        for entry in entries
    ]
    crowds = [bool(entry.get("iscrowd", 0)) for entry in entries]
    return Truths(boxes=boxes, areas=np.array(areas, dtype=np.float64), is_crowd=np.array(crowds, dtype=bool))


def detections_of(entries: list[Mapping[str, Any]]) -> Detections:
    """Collect the detections of one class in one picture."""
    return Detections(
        boxes=np.array([entry["bbox"] for entry in entries], dtype=np.float64).reshape(-1, 4),
        scores=np.array([entry["score"] for entry in entries], dtype=np.float64),
    )


def pair_of_masks(
    truths: list[Mapping[str, Any]], results: list[Mapping[str, Any]], size: tuple[int, int], *, where: str
) -> tuple[Truths, Detections]:
    """Collect the masks of one class in one picture, and their overlaps."""
    objects = truths_of(truths)
    own, others = masks_of(results, size, where=where), masks_of(truths, size, where=where)
    return objects, Detections(
        boxes=np.zeros((len(results), 4)),
        scores=np.array([entry["score"] for entry in results], dtype=np.float64),
        areas=own.sum(axis=(1, 2)).astype(np.float64),
        overlaps=mask_ious(own, others, is_crowd=objects.is_crowd),
    )


def masks_of(entries: list[Mapping[str, Any]], size: tuple[int, int], *, where: str) -> NDArray[np.bool_]:
    """Decode the masks of some entries (N, H, W)."""
    masks = np.zeros((len(entries), *size), dtype=bool)
    for place, entry in enumerate(entries):
        if "segmentation" not in entry:
            raise DataError(f"an annotation of {where} has no segmentation, and the results have masks")
        masks[place] = decode_segmentation(entry["segmentation"], size, where=where)
    return masks


def size_of(picture: Mapping[str, Any], *, where: str) -> tuple[int, int]:
    """Return the height and width of a picture as its annotations state them."""
    sides = picture.get("height"), picture.get("width")
    if not all(isinstance(side, int) and side > 0 for side in sides):
        raise DataError(
            f"{printable(where)}: image {picture['id']!r} has no height and width, which masks need"
        )
    return int(sides[0]), int(sides[1])  # type: ignore[arg-type]
