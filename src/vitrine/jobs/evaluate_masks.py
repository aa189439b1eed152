"""The work behind `vitrine evaluate` for masks: a model on pictures with masks, or mask files against others."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrine.checkpoints import Loaded, load
from vitrine.data.decoding.annotation import IGNORED, Map
from vitrine.data.decoding.decode import decode
from vitrine.data.sources.mask_folders import open_folders
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.outputs import Wish, chosen_precision
from vitrine.evaluation.pixel_predictions import predict_pixels
from vitrine.evaluation.segmentation import PixelScore, confusion_of, total_of
from vitrine.jobs.test_images import open_test_images
from vitrine.reports.mask_page import MaskCard, render_masks
from vitrine.reports.pages import write_page
from vitrine.runtime.devices import choose_device
from vitrine.runtime.files import write_atomically
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import announced
from vitrine.runtime.result import Result
from vitrine.spelling import printable, some_of

METRICS, PAGE = "metrics.json", "report.html"
MOST_WORST, MOST_CARDS = 5, 12
# The page keeps the worst pictures seen so far; fewer labelled pixels than this say little.
LEAST_PIXELS = 100
# Grey of the picture that masks are drawn on where there is none.
BLANK = 200


@dataclass(frozen=True, kw_only=True, repr=False)
class MaskEvaluation(Result):
    """How well pixels are classified, over all pictures together."""

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
    """Labelled, predicted, and how many pixels; most first."""
    wrote: tuple[Path, ...]


def evaluate_mask_model(
    model: str,
    data: str,
    *,
    split: str | None,
    out: Path | None,
    image_size: int | None,
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
    table = _numbers_of(loaded, source)
    folder = new_output_folder(
        out, verb="evaluate", files=(METRICS, PAGE), is_overwriting=is_overwriting,
        never_in=[] if source.root is None else [source.root],
    )  # fmt: skip
    place = choose_device(device)
    predictions = predict_pixels(
        loaded.model.to(place), source, preprocess=loaded.preprocess, device=place,
        num_workers=2 if workers is None else workers, precision=chosen_precision(precision, place),
    )  # fmt: skip

    def pairs() -> Iterator[tuple[int, Map, Map]]:
        for one in predictions:
            if one.classes is None:
                raise DataError(f"cannot evaluate {printable(source.name(one.index))}: {one.error}")
            truth = source.annotation(one.index).classes
            assert truth is not None
            yield one.index, table[truth], one.classes

    classes = loaded.classes or source.classes
    with removed_if_empty(folder):
        score, worst = _scored(pairs(), classes=classes, count=len(source))
    cards = [
        MaskCard(
            name=source.name(index), pixels=decode(source.read(index).data), truth=truth, predicted=predicted,
            accuracy=accuracy,
        )
        for accuracy, index, truth, predicted in worst
    ]  # fmt: skip
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
        score, worst = _scored(
            ((index, *masks.pair(index)) for index in range(len(masks))),
            classes=masks.classes,
            count=len(masks),
        )
    cards = [
        MaskCard(
            name=masks.files[index][0].name, truth=true, predicted=guess, accuracy=accuracy,
            pixels=np.full((*true.shape, 3), BLANK, dtype=np.uint8),
        )
        for accuracy, index, true, guess in worst
    ]  # fmt: skip
    return _written(score, folder, cards, model=str(predicted), data=printable(str(truth)), split="masks")


def _scored(
    pairs: Iterable[tuple[int, Map, Map]], *, classes: tuple[str, ...], count: int
) -> tuple[PixelScore, list[tuple[float, int, Map, Map]]]:
    """Return the score, and accuracy, number and masks of the pictures with the lowest accuracy."""
    each, worst = [], list[tuple[float, int, Map, Map]]()
    with announced("Evaluating", total=count) as advance:
        for index, truth, predicted in pairs:
            counts = confusion_of(truth, predicted, num_classes=len(classes))
            each.append(counts)
            if counts.sum() >= LEAST_PIXELS:
                accuracy = float(counts[:, :-1].trace() / counts.sum())
                worst = sorted([*worst, (accuracy, index, truth, predicted)], key=lambda one: one[:2])[
                    :MOST_CARDS
                ]
            advance(1, "")
    score = PixelScore(
        classes=classes, confusion=total_of(each, num_classes=len(classes)), num_images=len(each)
    )
    return score, worst


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


def _numbers_of(loaded: Loaded, source: Source) -> NDArray[np.uint8]:
    """Return the model's number of each class of the data (256,), matched by name; 255 stays ignored."""
    classes = loaded.classes or source.classes
    unknown = [name for name in source.classes if name not in classes]
    if unknown:
        raise ConfigError(
            f"{printable(source.address)} has the class {printable(unknown[0])}, which is not one of the model's: "
            f"{some_of(list(classes))}"
        )
    table = np.full(IGNORED + 1, IGNORED, dtype=np.uint8)
    table[: len(source.classes)] = [classes.index(name) for name in source.classes]
    return table
