"""The work behind `vitrine evaluate` for a detector: its boxes in the pictures of a test set, scored as COCO does."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrine.checkpoints import Loaded, load
from vitrine.data.decoding.annotation import Annotation
from vitrine.data.decoding.decode import decode
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.box_predictions import BoxPrediction, by_class, predict_boxes
from vitrine.evaluation.detection import BoxScore, score_boxes
from vitrine.evaluation.outputs import Wish, chosen_precision
from vitrine.jobs.evaluate_detections import METRICS, DetectionEvaluation, written
from vitrine.jobs.predict_boxes import has_duplicates
from vitrine.jobs.test_images import open_test_images
from vitrine.reports.box_page import BoxCard, missed_and_wrong, render_boxes
from vitrine.reports.pages import write_page
from vitrine.runtime.devices import choose_device
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.progress import announced
from vitrine.spelling import printable, some_of

PAGE = "report.html"
MOST_CARDS = 12


def evaluate_box_model(
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
) -> DetectionEvaluation:
    """Predict the boxes of a test set with a model, and score them; the page shows where it is most wrong."""
    name, source = open_test_images(model, data, split)
    loaded = load(model, image_size=image_size)
    classes = loaded.classes or source.classes
    numbers = numbers_of(loaded, source)
    folder = new_output_folder(
        out, verb="evaluate", files=(METRICS, PAGE), is_overwriting=is_overwriting,
        never_in=[] if source.root is None else [source.root],
    )  # fmt: skip
    place = choose_device(device)
    predictions = predict_boxes(
        loaded.model.to(place), source, preprocess=loaded.preprocess, device=place,
        num_workers=2 if workers is None else workers, precision=chosen_precision(precision, place),
        has_duplicates=has_duplicates(loaded),
    )  # fmt: skip
    with removed_if_empty(folder):
        score, worst = _scored(predictions, source, numbers, classes=classes)
    what = f"{printable(data)} ({name})"
    result = written(score, folder, detections=model, annotations=what)
    cards = [
        BoxCard(
            name=source.name(prediction.index), pixels=decode(source.read(prediction.index).data), truth=truth,
            prediction=prediction,
        )
        for _, truth, prediction in worst
    ]  # fmt: skip
    page = write_page(
        folder / PAGE, render_boxes(score, classes=classes, model=model, data=what, cards=cards)
    )
    return replace(result, wrote=(*result.wrote, page))


def _scored(
    predictions: Iterator[BoxPrediction],
    source: Source,
    numbers: NDArray[np.int64],
    *,
    classes: tuple[str, ...],
) -> tuple[BoxScore, list[tuple[int, Annotation, BoxPrediction]]]:
    """Return the score, and the pictures with the most objects that are missed or found wrongly."""
    pairs, worst = [], list[tuple[int, Annotation, BoxPrediction]]()
    with announced("Evaluating", total=len(source)) as advance:
        for prediction in predictions:
            if prediction.error is not None:
                raise DataError(
                    f"cannot evaluate {printable(source.name(prediction.index))}: {prediction.error}"
                )
            truth = source.annotation(prediction.index)
            truth = replace(truth, labels=numbers[truth.labels])
            pairs.append(by_class(truth, prediction))
            worst.append((missed_and_wrong(truth, prediction), truth, prediction))
            worst = sorted(worst, key=lambda one: (-one[0], one[2].index))[:MOST_CARDS]
            advance(1, "")
    return score_boxes(pairs, classes=classes), [one for one in worst if one[0]]


def numbers_of(loaded: Loaded, source: Source) -> NDArray[np.int64]:
    """Return the model's number of each class of the data, matched by name."""
    classes = loaded.classes or source.classes
    unknown = [name for name in source.classes if name not in classes]
    if unknown:
        raise ConfigError(
            f"{printable(source.address)} has the class {printable(unknown[0])}, which is not one of the model's: "
            f"{some_of(list(classes))}"
        )
    return np.array([classes.index(name) for name in source.classes], dtype=np.int64)
