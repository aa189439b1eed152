"""The work behind `vitrine fewshot` for data with masks: mean IoU with a few masks, and the solved model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.checkpoints import load, save
from vitrine.data.decoding.annotation import Map
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.outputs import Precision
from vitrine.evaluation.pixel_fewshot import (
    DEFAULT_L2,
    PictureTokens,
    PixelShots,
    draw_pictures,
    picture_tokens,
    score_shots,
    solved,
    with_solution,
)
from vitrine.inspection.pictures import spread
from vitrine.models import ViT, build
from vitrine.models.dense.config import LinearSegmenterConfig, as_encoder
from vitrine.models.dense.linear import LinearSegmenter
from vitrine.models.dense.model import DenseModel
from vitrine.runtime.devices import choose_device
from vitrine.runtime.output_folder import new_output_folder
from vitrine.runtime.progress import track
from vitrine.runtime.result import Result
from vitrine.spelling import printable

SHOTS = (1, 5, 10, 25)
# Test pictures, spread evenly: more change the score little and take minutes on a CPU.
MOST_TESTED = 200
FOLDER = "model"


@dataclass(frozen=True, kw_only=True, repr=False)
class PixelShotsReport(Result):
    """Mean IoU per number of masks, and where the model with the most was saved."""

    model: str
    data: str
    classes: tuple[str, ...]
    num_train: int
    num_test: int
    seeds: int
    l2: float
    scores: tuple[PixelShots, ...]
    wrote: tuple[Path, ...] = ()


def fewshot_pixels(
    model: str,
    data: str,
    *,
    shots: tuple[int, ...] | None,
    seeds: int,
    l2: float | None,
    test_fraction: float,
    out: Path | None,
    image_size: int | None,
    workers: int,
    device: str,
    precision: Precision,
) -> PixelShotsReport:
    """Solve the linear head on a few masks, several times, and score it on pictures with masks."""
    train, test = _splits(data, test_fraction=test_fraction)
    wanted = shots or tuple(count for count in SHOTS if count <= len(train))
    if max(wanted) > len(train):
        raise ConfigError(
            f"must be at most {len(train)}, the pictures of train; got {max(wanted)}", option="shots"
        )
    place, head, preprocess = choose_device(device), *_head(model, len(train.classes), image_size=image_size)
    head.to(place)
    folder = None if out is None else new_output_folder(out, verb="fewshot", files=(FOLDER,))

    def tokens_of(source: Source, indices: list[int], what: str) -> dict[int, tuple[PictureTokens, Map]]:
        pairs = picture_tokens(
            head,
            source,
            indices,
            preprocess=preprocess,
            device=place,
            num_workers=workers,
            precision=precision,
        )
        return {
            index: (tokens, _classes(source, index))
            for index, tokens in track(pairs, what, total=len(indices))
        }

    draws = {
        (count, seed): draw_pictures(len(train), shots=count, seed=seed)
        for count in wanted
        for seed in range(seeds if count < len(train) else 1)
    }
    chosen = sorted({index for indices in draws.values() for index in indices})
    examples = tokens_of(train, chosen, "Tokens of the examples")
    tests = tokens_of(test, spread(len(test), MOST_TESTED).tolist(), "Tokens of the test pictures")
    strength = DEFAULT_L2 if l2 is None else l2
    scores = score_shots(
        examples,
        list(tests.values()),
        draws=draws,
        classes=train.classes,
        window=preprocess.size,
        l2=strength,
    )
    wrote: tuple[Path, ...] = ()
    if folder is not None:
        best = [examples[index] for index in draws[max(wanted), 0]]
        weight, bias = solved(best, window=preprocess.size, num_classes=len(train.classes), l2=strength)
        saved = with_solution(head.cpu(), weight, bias)
        wrote = (save(saved, folder / FOLDER, classes=train.classes, preprocess=preprocess),)
    return PixelShotsReport(
        model=model, data=printable(data), classes=train.classes, num_train=len(train), num_test=len(tests),
        seeds=seeds, l2=strength, scores=scores, wrote=wrote,
    )  # fmt: skip


def _splits(data: str, *, test_fraction: float) -> tuple[Source, Source]:
    """Open the pictures to draw from and those to test on; the test set if there is one, else the validation set."""
    splits = open_splits(data, val_fraction=test_fraction)
    test = splits.get("test", splits.get("val"))
    if "train" not in splits or test is None:
        raise DataError(f"{printable(data)} has only {', '.join(splits)}; train, and test or val are needed")
    return splits["train"], test


def _head(model: str, num_classes: int, *, image_size: int | None) -> tuple[LinearSegmenter, Preprocess]:
    """Put a linear head on the ViT of a model."""
    loaded = load(model, image_size=image_size)
    vit = loaded.model.vit if isinstance(loaded.model, DenseModel) else loaded.model
    if not isinstance(vit, ViT):
        raise ConfigError(
            f"pixels are labelled on the tokens of a plain ViT, and {model} is none", option="model"
        )
    head = build(LinearSegmenterConfig(vit=as_encoder(vit.config), num_classes=num_classes))
    assert isinstance(head, LinearSegmenter)
    weights = vit.state_dict()
    head.vit.load_state_dict({name: weights[name] for name in head.vit.state_dict()})
    return head.eval(), loaded.preprocess.with_size(head.config.image_size)


def _classes(source: Source, index: int) -> Map:
    classes = source.annotation(index).classes
    assert classes is not None
    result: Map = np.asarray(classes)
    return result
