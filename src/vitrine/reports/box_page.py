"""The page of an evaluation of boxes: COCO's numbers, AP per class, and the pictures with most mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrine.data.decoding.annotation import Annotation
from vitrine.data.decoding.image_file import Pixels
from vitrine.evaluation.box_predictions import BoxPrediction, by_class
from vitrine.evaluation.detection import NAMES, BoxScore, ious
from vitrine.reports.box_drawing import drawn
from vitrine.reports.pages import data_url, render
from vitrine.spelling import printable

CARD_SIDE = 300
# Scores from which a box counts as an answer here, and overlaps from which it is right.
SURE_SCORE, LEAST_OVERLAP = 0.3, 0.5
MEANINGS = {
    "AP": "average precision, IoU 50 to 95 %", "AP50": "at an IoU of 50 %", "AP75": "at an IoU of 75 %",
    "APs": "objects below 32 x 32 pixels", "APm": "objects up to 96 x 96 pixels", "APl": "larger objects",
    "AR1": "recall with one box per picture", "AR10": "with ten boxes", "AR100": "with a hundred boxes",
    "ARs": "recall of small objects", "ARm": "of middle-sized objects", "ARl": "of large objects",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BoxCard:
    """One picture with its true and its predicted boxes."""

    name: str
    pixels: Pixels
    truth: Annotation
    prediction: BoxPrediction


def missed_and_wrong(truth: Annotation, prediction: BoxPrediction) -> int:
    """Count the objects that no sure box of their class covers, and the sure boxes that cover no object of theirs."""
    count = 0
    for truths, detections in by_class(truth, prediction).values():
        is_sure = detections.scores >= SURE_SCORE
        right = ious(detections.boxes[is_sure], truths) >= LEAST_OVERLAP  # (D, G)
        missed = ~right.any(axis=0) & ~truths.is_crowd
        count += int(missed.sum()) + int((~right.any(axis=1)).sum())
    return count


def render_boxes(
    score: BoxScore, *, classes: Sequence[str], model: str, data: str, cards: Sequence[BoxCard] = ()
) -> str:
    """Render the page of an evaluation of boxes."""
    rows = sorted(score.per_class.items(), key=lambda one: one[1])
    return render(
        "boxes.html.j2",
        model=printable(model),
        address=printable(data),
        score=score,
        numbers=[(name, MEANINGS[name], score.numbers[name]) for name in NAMES],
        rows=[(printable(name), value) for name, value in rows],
        cards=[_card(card, classes) for card in cards],
    )


def _card(card: BoxCard, classes: Sequence[str]) -> dict[str, Any]:
    is_sure = card.prediction.scores >= SURE_SCORE
    return {
        "name": printable(card.name),
        "mistakes": missed_and_wrong(card.truth, card.prediction),
        "truth": data_url(drawn(card.pixels, card.truth.boxes, card.truth.labels, classes=classes), CARD_SIDE),
        "predicted": data_url(
            drawn(
                card.pixels, card.prediction.boxes[is_sure], card.prediction.labels[is_sure], classes=classes,
                scores=np.asarray(card.prediction.scores[is_sure]),
            ),
            CARD_SIDE,
        ),
    }  # fmt: skip
