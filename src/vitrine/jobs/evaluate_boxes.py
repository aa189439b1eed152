"""The work behind `vitrine evaluate` for a detector: its boxes in the pictures of a test set, scored as COCO does."""

from dataclasses import replace
from pathlib import Path

from vitrine.checkpoints import load
from vitrine.evaluation.outputs import Wish, chosen_precision
from vitrine.jobs.evaluate_detections import METRICS, DetectionEvaluation, written
from vitrine.jobs.test_images import open_test_images
from vitrine.models.sizes import ImageSize
from vitrine.reports.box_page import render_boxes
from vitrine.reports.pages import write_page
from vitrine.runs.dense_report import box_cards, numbers_of, scored_boxes
from vitrine.runtime.devices import choose_device
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.spelling import printable

PAGE = "report.html"
MOST_CARDS = 12


def evaluate_box_model(
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
) -> DetectionEvaluation:
    """Predict the boxes of a test set with a model, and score them; the page shows the worst pictures."""
    name, source = open_test_images(model, data, split)
    loaded = load(model, image_size=image_size)
    classes = loaded.classes or source.classes
    numbers_of(loaded, source)  # refuses other classes before any work
    folder = new_output_folder(
        out, verb="evaluate", files=(METRICS, PAGE), is_overwriting=is_overwriting,
        never_in=[] if source.root is None else [source.root],
    )  # fmt: skip
    place = choose_device(device)
    with removed_if_empty(folder):
        mistakes = scored_boxes(
            loaded, source, device=place, workers=2 if workers is None else workers,
            precision=chosen_precision(precision, place),
        )  # fmt: skip
    what = f"{printable(data)} ({name})"
    result = written(mistakes.score, folder, detections=model, annotations=what)
    page = write_page(
        folder / PAGE,
        render_boxes(
            mistakes, classes=classes, model=model, data=what, cards=box_cards(source, mistakes.worst)
        ),
    )
    return replace(result, wrote=(*result.wrote, page))
