"""The inputs on which an export is compared, calibrated and measured: pixels of pictures, and labelled data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from vitrine.checkpoints import Loaded
from vitrine.data.sources.generated import GeneratedSource
from vitrine.data.sources.picture_paths import open_pictures
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.test_sets import in_model_classes
from vitrine.inspection.pictures import PictureBatches, spread
from vitrine.jobs.test_images import open_test_images
from vitrine.runtime.progress import notice
from vitrine.spelling import with_name

NUM_GENERATED = 8
NUM_CALIBRATION = 64
"""More pictures change the ranges of activations by less than the rounding error."""


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Normalised images (N, C, height, width), what they are, and the folders that they lie in."""

    rows: Tensor
    kind: Literal["given", "generated", "random"]
    folders: tuple[Path, ...] = ()


def proof_pixels(loaded: Loaded, images: Sequence[str], *, count: int, workers: int) -> Pixels:
    """Return the images to compare outputs on: given ones, else generated ones."""
    if images:
        return given_pixels(loaded, images, count=count, workers=workers, option="images")
    channels, size = loaded.preprocess.channels, loaded.preprocess.size
    if channels in (1, 3):
        source = GeneratedSource(count=NUM_GENERATED, size=max(64, *size))
        return Pixels(rows=read_pixels(loaded, source, workers=workers), kind="generated")
    generator = torch.Generator().manual_seed(0)
    return Pixels(rows=torch.randn((NUM_GENERATED, channels, *size), generator=generator), kind="random")


def given_pixels(loaded: Loaded, images: Sequence[str], *, count: int, workers: int, option: str) -> Pixels:
    """Return up to `count` of the given images, spread evenly."""
    source, folders = open_pictures(images)
    if source is None:
        raise DataError(f"{' '.join(images)} holds no images", option=option)
    rows = read_pixels(loaded, Subset(source, spread(len(source), count)), workers=workers)
    return Pixels(rows=rows, kind="given", folders=tuple(folders))


def read_pixels(loaded: Loaded, source: Source, *, workers: int) -> Tensor:
    """Read, prepare and normalise all images of a source that can be read."""
    batches = PictureBatches(source, preprocess=loaded.preprocess, batch_size=8, num_workers=workers)
    pixels = list(batches)
    for index, why in batches.failures.items():
        notice(f"Skipped: {with_name(why, source.name(index))}")
    if not pixels:
        raise DataError(f"none of the {len(source)} images can be read; the first: {batches.failures[0]}")
    return torch.cat(pixels)


def labelled_source(loaded: Loaded, model: str, data: str, split: str | None, *, by_order: bool) -> Source:
    """Open labelled data in the model's classes."""
    _, source = open_test_images(model, data, split)
    source = in_model_classes(
        source, loaded.classes, num_outputs=loaded.model.config.num_classes, by_order=by_order
    )
    if source.is_multi_label:
        raise ConfigError(f"needs one label per image; {data} has several", option="data")
    return source
