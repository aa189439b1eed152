"""The page of a segmentation: IoU per class, confused classes, and the worst pictures with their masks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrine.data.decoding.annotation import Map
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.decoding.mask_file import background_of, class_colours, overlaid
from vitrine.evaluation.segmentation import PixelScore, confusion_of
from vitrine.reports.pages import data_url, render
from vitrine.spelling import printable

CARD_SIDE = 300
MOST_PAIRS, MOST_PAIRS_PER_CARD = 10, 2


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
    return render(
        "masks.html.j2",
        model=printable(model),
        address=printable(data),
        split=split,
        **mask_section(score, cards=cards),
    )


def mask_section(score: PixelScore, *, cards: Sequence[MaskCard] = ()) -> dict[str, Any]:
    """Return the values of masks_parts.html.j2."""
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
    return {
        "score": score,
        "rows": sorted(rows, key=lambda row: (row["iou"] is None, row["iou"])),
        "pairs": [
            {"label": printable(one), "predicted": printable(other), "share": pixels / total}
            for one, other, pixels in score.confused(MOST_PAIRS)
        ],
        "background": printable(score.classes[background_of(score.classes)]),
        "worst": [_card(card, score.classes) for card in cards],
    }


def _card(card: MaskCard, classes: tuple[str, ...]) -> dict[str, Any]:
    counts = confusion_of(card.truth, card.predicted, num_classes=len(classes))
    own = PixelScore(classes=classes, confusion=counts, num_images=1)
    total = max(int(counts.sum()), 1)
    return {
        "name": printable(card.name),
        "accuracy": card.accuracy,
        "confused": [
            f"{printable(one)} taken for {printable(other)}: {100 * pixels / total:.1f} % of the pixels"
            for one, other, pixels in own.confused(MOST_PAIRS_PER_CARD)
        ],
        "truth": data_url(overlaid(card.pixels, card.truth, classes), CARD_SIDE),
        "predicted": data_url(overlaid(card.pixels, card.predicted, classes), CARD_SIDE),
    }
