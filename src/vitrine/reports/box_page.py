"""The page of an evaluation of boxes: COCO's numbers, AP per class, confused classes, and the worst pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrine.data.decoding.image_file import Pixels
from vitrine.evaluation.detection import NAMES
from vitrine.evaluation.mistakes import SURE_SCORE, BoxMistakes, Mistake, WorstBoxes
from vitrine.reports.box_drawing import drawn
from vitrine.reports.pages import data_url, render
from vitrine.spelling import printable

CARD_SIDE = 300
MOST_PAIRS, MOST_WORDS = 12, 6
NOTHING, MISSED = "nothing", "not found"
MEANINGS = {
    "AP": "average precision, IoU 50 to 95 %", "AP50": "at an IoU of 50 %", "AP75": "at an IoU of 75 %",
    "APs": "objects below 32 x 32 pixels", "APm": "objects up to 96 x 96 pixels", "APl": "larger objects",
    "AR1": "recall with one answer per picture", "AR10": "with ten", "AR100": "with a hundred",
    "ARs": "recall of small objects", "ARm": "of middle-sized objects", "ARl": "of large objects",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BoxCard:
    """One picture with its true and its predicted boxes."""

    name: str
    pixels: Pixels
    worst: WorstBoxes


def render_boxes(
    mistakes: BoxMistakes, *, classes: Sequence[str], model: str, data: str, cards: Sequence[BoxCard] = ()
) -> str:
    """Render the page of an evaluation of boxes."""
    return render(
        "boxes.html.j2",
        model=printable(model),
        address=printable(data),
        **box_section(mistakes, classes=classes, cards=cards),
    )


def box_section(
    mistakes: BoxMistakes, *, classes: Sequence[str], cards: Sequence[BoxCard] = ()
) -> dict[str, Any]:
    """Return the values of boxes_parts.html.j2."""
    score = mistakes.score
    rows = sorted(score.per_class.items(), key=lambda one: one[1])
    return {
        "shapes": "masks" if mistakes.has_masks else "boxes",
        "score": score,
        "numbers": [(name, MEANINGS[name], score.numbers[name]) for name in NAMES],
        "rows": [(printable(name), value) for name, value in rows],
        "pairs": [
            {
                "label": _name(label, classes, NOTHING),
                "predicted": _name(other, classes, MISSED),
                "count": count,
            }
            for (label, other), count in mistakes.counts[:MOST_PAIRS]
        ],
        "worst": [_card(card, classes) for card in cards],
    }


def _card(card: BoxCard, classes: Sequence[str]) -> dict[str, Any]:
    truth, prediction = card.worst.truth, card.worst.prediction
    sure = prediction.first(int((prediction.scores >= SURE_SCORE).sum()))
    return {
        "name": printable(card.name),
        "mistakes": [words_of(one, classes) for one in card.worst.mistakes[:MOST_WORDS]]
        + ([f"and {len(card.worst.mistakes) - MOST_WORDS} more"] if len(card.worst.mistakes) > MOST_WORDS else []),
        "truth": data_url(
            drawn(
                card.pixels, truth.boxes, truth.labels, classes=classes, planes=truth.planes,
                shown_at=CARD_SIDE,
            ),
            CARD_SIDE,
        ),
        "predicted": data_url(
            drawn(
                card.pixels, sure.boxes, sure.labels, classes=classes, scores=sure.scores, planes=sure.planes,
                shown_at=CARD_SIDE,
            ),
            CARD_SIDE,
        ),
    }  # fmt: skip


def words_of(mistake: Mistake, classes: Sequence[str]) -> str:
    """Describe a mistake: not found, found where nothing is, or taken for another class."""
    label, other = mistake
    if other is None:
        return f"{_name(label, classes, NOTHING)} not found"
    if label is None:
        return f"{_name(other, classes, NOTHING)} where there is none"
    return f"{_name(label, classes, NOTHING)} taken for {_name(other, classes, NOTHING)}"


def _name(number: int | None, classes: Sequence[str], nothing: str) -> str:
    return nothing if number is None else printable(classes[number])
