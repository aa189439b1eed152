"""Masks and boxes of a model on labelled pictures: scores, and the worst pictures as cards of a page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.checkpoints import Loaded
from vitrine.data.decoding.annotation import IGNORED, Map
from vitrine.data.decoding.decode import decode
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.box_predictions import predict_boxes
from vitrine.evaluation.mistakes import BoxMistakes, WorstBoxes, WorstMask, score_found, score_masks
from vitrine.evaluation.outputs import Precision
from vitrine.evaluation.pixel_predictions import predict_pixels
from vitrine.evaluation.segmentation import PixelScore
from vitrine.models.dense.config import DenseConfig
from vitrine.reports.box_page import BoxCard, box_section
from vitrine.reports.mask_page import MaskCard, mask_section
from vitrine.spelling import printable, some_of


@dataclass(frozen=True, kw_only=True)
class DenseSection:
    """The section of a run's page about masks or boxes."""

    template: str
    values: dict[str, Any]
    headline: str
    num_images: int


def dense_section(
    loaded: Loaded, source: Source, *, device: torch.device | str, workers: int
) -> DenseSection:
    """Score a model of masks or boxes on labelled pictures for the page of its run."""
    classes = loaded.classes or source.classes
    place = torch.device(device)
    config = loaded.model.config
    assert isinstance(config, DenseConfig)
    if config.answers == "masks":
        score, worst = scored_masks(loaded, source, device=place, workers=workers)
        values = mask_section(score, cards=mask_cards(source, worst))
        headline = f"{100 * score.mean_iou:.1f} % mean IoU"
        return DenseSection(
            template="masks_parts.html.j2", values=values, headline=headline, num_images=score.num_images
        )
    mistakes = scored_boxes(loaded, source, device=place, workers=workers)
    values = box_section(mistakes, classes=classes, cards=box_cards(source, mistakes.worst))
    headline = f"{100 * mistakes.score.numbers['AP50']:.1f} % AP50"
    return DenseSection(
        template="boxes_parts.html.j2", values=values, headline=headline, num_images=mistakes.score.num_images
    )


def scored_masks(
    loaded: Loaded, source: Source, *, device: torch.device, workers: int, precision: Precision = "fp32"
) -> tuple[PixelScore, tuple[WorstMask, ...]]:
    """Predict the masks of labelled pictures; return the score and the worst pictures."""
    table = np.full(IGNORED + 1, IGNORED, dtype=np.uint8)
    table[: len(source.classes)] = numbers_of(loaded, source)
    predictions = predict_pixels(
        loaded.model.to(device), source, preprocess=loaded.preprocess, device=device, num_workers=workers,
        precision=precision,
    )  # fmt: skip

    def pairs() -> Iterator[tuple[int, Map, Map]]:
        for one in predictions:
            if one.classes is None:
                raise DataError(f"cannot evaluate {printable(source.name(one.index))}: {one.error}")
            truth = source.annotation(one.index).classes
            assert truth is not None
            yield one.index, table[truth], one.classes

    return score_masks(pairs(), classes=loaded.classes or source.classes, count=len(source))


def scored_boxes(
    loaded: Loaded, source: Source, *, device: torch.device, workers: int, precision: Precision = "fp32"
) -> BoxMistakes:
    """Predict the boxes of labelled pictures; return the score, the worst pictures and the confused classes."""
    numbers = numbers_of(loaded, source)
    config = loaded.model.config
    assert isinstance(config, DenseConfig)
    predictions = predict_boxes(
        loaded.model.to(device), source, preprocess=loaded.preprocess, device=device, num_workers=workers,
        precision=precision, config=config,
    )  # fmt: skip
    return score_found(
        predictions, source.annotation, name_of=lambda index: printable(source.name(index)),
        classes=loaded.classes or source.classes, numbers=numbers, count=len(source),
    )  # fmt: skip


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


def mask_cards(source: Source, worst: Sequence[WorstMask]) -> list[MaskCard]:
    """Read the worst pictures for the page."""
    return [
        MaskCard(
            name=source.name(one.index), pixels=decode(source.read(one.index).data), truth=one.truth,
            predicted=one.predicted, accuracy=one.accuracy,
        )
        for one in worst
    ]  # fmt: skip


def box_cards(source: Source, worst: Sequence[WorstBoxes]) -> list[BoxCard]:
    """Read the pictures with the most mistakes for the page."""
    return [
        BoxCard(
            name=source.name(one.prediction.index), worst=one,
            pixels=decode(source.read(one.prediction.index).data),
        )
        for one in worst
    ]  # fmt: skip
