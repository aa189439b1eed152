"""The class of every pixel of pictures of any size, picture by picture: for training, evaluation and serving."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrine.data.decoding.annotation import Map
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.preprocess import Preprocess, planes, resize
from vitrine.data.sources.source import Source
from vitrine.evaluation.outputs import Precision
from vitrine.evaluation.reading_ahead import ReadPicture, in_groups, read_ahead
from vitrine.models.dense.windows import class_maps, covering_size

# Windows that are scored at once.
MOST_WINDOWS = {"cuda": 32, "cpu": 2}


@dataclass(frozen=True, kw_only=True)
class PixelPrediction:
    """The class of every pixel (H, W) of one picture, or why it cannot be read."""

    index: int
    classes: Map | None
    error: str | None = None


def predict_pixels(
    module: nn.Module,
    source: Source,
    *,
    preprocess: Preprocess,
    device: torch.device,
    num_workers: int,
    precision: Precision = "fp32",
    indices: Sequence[int] | None = None,
) -> Iterator[PixelPrediction]:
    """Predict the class of every pixel of pictures of a source, in order; a few are in memory at once.

    The shorter side is resized to the window of the model, and windows cover the rest.
    """
    chosen = range(len(source)) if indices is None else indices
    most_windows = MOST_WINDOWS.get(device.type, MOST_WINDOWS["cpu"])
    reads = read_ahead(source, chosen, preprocess=preprocess, num_workers=num_workers, resize=covering)
    yield from in_groups(
        reads,
        lambda group: _predicted(module, group, preprocess, device=device, most_windows=most_windows),
        num_pictures=max(most_windows // 2, 1),  # most pictures have two windows
        device=device, precision=precision,
    )  # fmt: skip


def _predicted(
    module: nn.Module,
    group: list[ReadPicture],
    preprocess: Preprocess,
    *,
    device: torch.device,
    most_windows: int,
) -> list[PixelPrediction]:
    readable = [(read, read.resized) for read in group if read.resized is not None]
    maps = class_maps(
        [preprocess.normalise(resized.to(device)) for _, resized in readable], module,
        sizes=[read.size for read, _ in readable], window=preprocess.size, most_windows=most_windows,
    )  # fmt: skip
    predicted = {read.index: classes.cpu().numpy() for (read, _), classes in zip(readable, maps, strict=True)}
    return [
        PixelPrediction(index=read.index, classes=predicted.get(read.index), error=read.error)
        for read in group
    ]


def covering(pixels: Pixels, preprocess: Preprocess) -> Tensor:
    """Resize a picture (H, W, C) so that it covers the window with the same aspect ratio: (C, h, w) uint8."""
    size = covering_size(pixels.shape[0], pixels.shape[1], window=preprocess.size)
    return resize(planes(pixels, preprocess.channels), size, preprocess.interpolation)
