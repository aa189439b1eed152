"""Scores of pictures of any size: resize, cut into windows that overlap, average, enlarge to the picture.

The shorter side is resized to the window's; windows are spread evenly along the longer one. Shapes: C channels,
K classes, H x W pixels of the picture.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Most values held at once while scores are enlarged to the size of a picture: 256 MiB in fp32.
MOST_NUMBERS = 2**26
# Windows along the longer side of a picture; a longer one is compressed.
MOST_IN_A_ROW = 32

ScoresOf = Callable[[Tensor], Tensor]
"""Maps normalised windows (B, C, height, width) to scores (B, K, rows, columns)."""


def covering_size(height: int, width: int, *, window: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a picture that covers the window with the same aspect ratio, up to that of 32 windows."""
    factor = max(window[0] / height, window[1] / width)
    # A picture of 1 x 60,000 pixels would need gigabytes.
    most = (MOST_IN_A_ROW * window[0], MOST_IN_A_ROW * window[1])
    return (
        min(max(round(height * factor), window[0]), most[0]),
        min(max(round(width * factor), window[1]), most[1]),
    )


def starts(length: int, window: int) -> list[int]:
    """Return where windows start along a side: as few as cover it, evenly spaced, the last flush with the end."""
    count = math.ceil(length / window)
    if count == 1:
        return [0]
    return [round(number * (length - window) / (count - 1)) for number in range(count)]


def window_places(size: tuple[int, int], window: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the upper left corners of the windows of a resized picture."""
    return [(top, left) for top in starts(size[0], window[0]) for left in starts(size[1], window[1])]


def class_maps(
    pictures: Sequence[Tensor],
    scores_of: ScoresOf,
    *,
    sizes: Sequence[tuple[int, int]],
    window: tuple[int, int],
    most_windows: int,
) -> list[Tensor]:
    """Return the most likely class of every pixel: for each resized, normalised picture (C, h, w) a map (H, W) uint8.

    `sizes` are the sizes of the stored pictures; at most `most_windows` windows are scored at once.
    """
    return [
        most_likely(scores, size)
        for scores, size in zip(
            picture_scores(pictures, scores_of, window=window, most_windows=most_windows), sizes, strict=True
        )
    ]


def picture_scores(
    pictures: Sequence[Tensor], scores_of: ScoresOf, *, window: tuple[int, int], most_windows: int
) -> list[Tensor]:
    """Return the scores of each picture (C, h, w), those of its windows averaged where they overlap: (K, h, w)."""
    places = [
        (number, top, left)
        for number, picture in enumerate(pictures)
        for top, left in window_places((picture.shape[1], picture.shape[2]), window)
    ]
    sums: list[Tensor | None] = [None] * len(pictures)
    counts = [picture.new_zeros(picture.shape[1:]) for picture in pictures]
    for first in range(0, len(places), most_windows):
        group = places[first : first + most_windows]
        cut = [
            pictures[number][:, top : top + window[0], left : left + window[1]] for number, top, left in group
        ]
        scores = scores_of(torch.stack(cut)).float()
        scores = F.interpolate(scores, size=window, mode="bilinear", align_corners=False)
        for (number, top, left), of_window in zip(group, scores, strict=True):
            total = sums[number]
            if total is None:
                total = sums[number] = scores.new_zeros(len(of_window), *pictures[number].shape[1:])
            total[:, top : top + window[0], left : left + window[1]] += of_window
            counts[number][top : top + window[0], left : left + window[1]] += 1
    return [total / count for total, count in zip(sums, counts, strict=True) if total is not None]


def most_likely(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the class with the highest score of every pixel of a picture: (K, h, w) to (H, W) uint8.

    Scores are enlarged bilinearly, a few classes at a time if the picture is large.
    """
    step = max(MOST_NUMBERS // (size[0] * size[1]), 1)
    best = torch.full(size, -math.inf, device=scores.device)
    winners = torch.zeros(size, dtype=torch.uint8, device=scores.device)
    for first in range(0, len(scores), step):
        part = scores[None, first : first + step]
        values, classes = F.interpolate(part, size=size, mode="bilinear", align_corners=False)[0].max(dim=0)
        is_better = values > best
        best = torch.where(is_better, values, best)
        winners = torch.where(is_better, (classes + first).to(torch.uint8), winners)
    return winners
