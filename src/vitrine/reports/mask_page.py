"""The page of a segmentation: IoU per class, what was confused, and the worst pictures with their masks on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrine.data.decoding.annotation import Map
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.decoding.mask_file import class_colours, overlaid
from vitrine.evaluation.segmentation import PixelScore
from vitrine.reports.pages import data_url, render
from vitrine.spelling import printable

CARD_SIDE = 300
MOST_PAIRS = 10


@dataclass(frozen=True, kw_only=True)
class MaskCard:
    """One picture with its true and its predicted masks."""

    name: str
    pixels: Pixels
    truth: Map
    predicted: Map
    accuracy: float
    """Share of its labelled pixels that are predicted correctly."""


def render_masks(
    score: PixelScore, *, model: str, data: str, split: str, cards: Sequence[MaskCard] = ()
) -> str:
    """Render the page of an evaluation of masks."""
    palette = class_colours(score.classes)
    accuracy, labelled = score.class_accuracy, score.num_labelled
    total = max(int(labelled.sum()), 1)
    rows: list[dict[str, Any]] = [
        {
            "name": printable(name),
            "colour": "#{:02x}{:02x}{:02x}".format(*palette[number].tolist()),
            "iou": None if np.isnan(iou) else float(iou),
            "accuracy": None if np.isnan(accuracy[number]) else float(accuracy[number]),
            "share": float(labelled[number]) / total,
        }
        for number, (name, iou) in enumerate(zip(score.classes, score.iou, strict=True))
    ]
    return render(
        "masks.html.j2",
        model=printable(model),
        address=printable(data),
        split=split,
        score=score,
        rows=sorted(rows, key=lambda row: (row["iou"] is None, row["iou"])),
        pairs=[
            {"label": printable(one), "predicted": printable(other), "share": pixels / total}
            for one, other, pixels in score.confused(MOST_PAIRS)
        ],
        cards=[
            {
                "name": printable(card.name),
                "accuracy": card.accuracy,
                "truth": data_url(overlaid(card.pixels, card.truth, score.classes), CARD_SIDE),
                "predicted": data_url(overlaid(card.pixels, card.predicted, score.classes), CARD_SIDE),
            }
            for card in cards
        ],
    )
