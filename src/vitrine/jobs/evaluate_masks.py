"""The work behind `vitrine evaluate` for masks: a model on pictures with masks, or mask files against others."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.checkpoints import load
from vitrine.data.sources.mask_folders import open_folders
from vitrine.errors import DataError
from vitrine.evaluation.mistakes import score_masks
from vitrine.evaluation.outputs import Wish, chosen_precision
from vitrine.evaluation.segmentation import PixelScore
from vitrine.jobs.test_images import open_test_images
from vitrine.models.sizes import ImageSize
from vitrine.reports.mask_page import MaskCard, render_masks
from vitrine.reports.pages import write_page
from vitrine.runs.dense_report import mask_cards, numbers_of, scored_masks
from vitrine.runtime.devices import choose_device
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.result import Result
from vitrine.spelling import printable

METRICS, PAGE = "metrics.json", "report.html"
MOST_WORST, MOST_CARDS = 5, 12
# Pictures with fewer labelled pixels are never among the worst pictures of the page: their IoU says little.
LEAST_PIXELS = 100
# Grey of the background that masks are drawn on if there is no picture.
BLANK = 200


@dataclass(frozen=True, kw_only=True, repr=False)
class MaskEvaluation(Result):
    """The accuracy of pixel classes, over all pictures together."""

    model: str
    data: str
    split: str
    num_images: int
    mean_iou: float
    pixel_accuracy: float
    mean_accuracy: float
    iou: dict[str, float]
    """Per class; a class that is neither labelled nor predicted is missing."""
    worst: tuple[tuple[str, float], ...]
    """Classes with the lowest IoU, lowest first."""
    confused: tuple[tuple[str, str, int], ...]
    """Labelled class, predicted class and number of pixels; most pixels first."""
    wrote: tuple[Path, ...]


def evaluate_mask_model(
    model: str,
    data: str,
    *,
    split: str | None,
    out: Path | None,
    image_size: ImageSize,
    workers: int | None,
    device: str,
    precision: Wish,
    is_overwriting: bool,
) -> MaskEvaluation:
    """Predict the masks of a test set with a model, and score them."""
    name, source = open_test_images(model, data, split)
    if source.task != "masks":
        raise DataError(f"{model} predicts masks, and {printable(data)} has none to compare them with")
    loaded = load(model, image_size=image_size)
    numbers_of(loaded, source)  # refuses other classes before any work
    folder = new_output_folder(
        out, verb="evaluate", files=(METRICS, PAGE), is_overwriting=is_overwriting,
        never_in=[] if source.root is None else [source.root],
    )  # fmt: skip
    place = choose_device(device)
    with removed_if_empty(folder):
        score, worst = scored_masks(
            loaded, source, device=place, workers=2 if workers is None else workers,
            precision=chosen_precision(precision, place),
        )  # fmt: skip
    cards = mask_cards(source, worst)
    return _written(score, folder, cards, model=model, data=printable(data), split=name)


def evaluate_mask_folders(
    predicted: Path, truth: Path, *, out: Path | None, is_overwriting: bool
) -> MaskEvaluation:
    """Score mask files against the true ones of the same names; a class list may lie in either folder or above it."""
    masks = open_folders(predicted, truth)
    folder = new_output_folder(
        out,
        verb="evaluate",
        files=(METRICS, PAGE),
        never_in=[truth, predicted],
        is_overwriting=is_overwriting,
    )
    with removed_if_empty(folder):
        score, worst = score_masks(
            ((index, *masks.pair(index)) for index in range(len(masks))),
            classes=masks.classes,
            count=len(masks),
        )
    cards = [
        MaskCard(
            name=masks.files[one.index][0].name, truth=one.truth, predicted=one.predicted,
            accuracy=one.accuracy, pixels=np.full((*one.truth.shape, 3), BLANK, dtype=np.uint8),
        )
        for one in worst
    ]  # fmt: skip
    return _written(score, folder, cards, model=str(predicted), data=printable(str(truth)), split="masks")


def _written(
    score: PixelScore, folder: Path, cards: list[MaskCard], *, model: str, data: str, split: str
) -> MaskEvaluation:
    """Write metrics.json and the page; return the headline."""
    iou = {
        name: float(value)
        for name, value in zip(score.classes, score.iou, strict=True)
        if not np.isnan(value)
    }
    facts = {"model": model, "data": data, "split": split, "num_images": score.num_images}
    figures = {name: None if np.isnan(value) else value for name, value in score.headline().items()}
    with write_atomically(folder / METRICS, mode="w") as file:
        json.dump(
            {**facts, **figures, "iou": iou, "classes": score.classes, "confusion": score.confusion.tolist()},
            file, indent=2, allow_nan=False,
        )  # fmt: skip
        file.write("\n")
    page = write_page(folder / PAGE, render_masks(score, model=model, data=data, split=split, cards=cards))
    return MaskEvaluation(
        model=model, data=data, split=split, num_images=score.num_images, mean_iou=score.mean_iou,
        pixel_accuracy=score.pixel_accuracy, mean_accuracy=score.mean_accuracy, iou=iou,
        worst=score.worst(MOST_WORST), confused=score.confused(MOST_WORST), wrote=(folder / METRICS, page),
    )  # fmt: skip
