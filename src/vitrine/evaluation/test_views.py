"""Several views of each test image: the mean of the logits of the image, its mirror image and shifted copies.

An accuracy of several views is stated beside that of one view, never in its place: it costs as many forward passes,
and models that are compared must see the same views.

`flip` is the image and its mirror image. `flip-shift` adds both shifted up and left, and down and right, by a 32nd of
the side (a pixel at 32 px); the two whole views have half of the weight, as in the CIFAR-10 speed runs
(arXiv:2404.00498, section 3.5).

Shapes: B images of C channels, K classes.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.metrics import Interval, interval_of_share, top_k_correct
from vitrine.evaluation.outputs import Outputs
from vitrine.spelling import nearest

TestViews = Literal["flip", "flip-shift"]
NUM_VIEWS: dict[TestViews, int] = {"flip": 2, "flip-shift": 6}
# Sides of an image per pixel of a shift.
SHIFT_DIVISOR = 32


def require_test_views(views: str) -> TestViews:
    """Return the name if it is one; refuse another with the nearest."""
    for known in NUM_VIEWS:
        if views == known:
            return known
    names = get_args(TestViews)
    close = nearest(views, names)
    raise ConfigError(
        f"must be one of {', '.join(names)}, got {views!r}; nearest: {close[0]}",
        option="views",
        suggestions=close,
    )


def over_views(model: Callable[[Tensor], Tensor], views: TestViews) -> Callable[[Tensor], Tensor]:
    """Return the function from normalised images (B, C, height, width) to the mean logits (B, K) of their views."""

    def logits_of(images: Tensor) -> Tensor:
        whole = of_both_sides(model, images)
        if views == "flip":
            return whole
        step = max(images.shape[-1] // SHIFT_DIVISOR, 1)
        moved = [of_both_sides(model, shifted(images, by)) for by in (-step, step)]
        return (whole + (moved[0] + moved[1]) / 2) / 2

    return logits_of


def beside_one_view(model: Callable[[Tensor], Tensor], views: TestViews | None) -> Callable[[Tensor], Tensor]:
    """Return the function from images to their logits (B, K) and, with several views, the mean of those: (B, 2 K).

    Both come from one reading of the images.
    """
    if views is None:
        return model
    mean_of = over_views(model, views)
    return lambda images: torch.cat([model(images), mean_of(images)], dim=1)


def of_one_and_several(outputs: Outputs, views: TestViews | None) -> tuple[Outputs, Outputs | None]:
    """Divide the outputs of `beside_one_view`: those of one view, and those of several if there are any."""
    if views is None:
        return outputs, None
    one, several = outputs.rows.chunk(2, dim=1)
    return replace(outputs, rows=one.contiguous()), replace(outputs, rows=several.contiguous())


def of_both_sides(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the mean logits of images and of their mirror images."""
    return (model(images) + model(images.flip(-1))) / 2


def shifted(images: Tensor, by: int) -> Tensor:
    """Move images by `by` pixels down and right (up and left if negative); the border is mirrored."""
    height, width = images.shape[-2:]
    margin = abs(by)
    padded = F.pad(images, (margin, margin, margin, margin), mode="reflect")
    return padded[..., margin - by : margin - by + height, margin - by : margin - by + width]


def accuracy_of(outputs: Outputs, source: Source, *, seed: int) -> Interval:
    """Return the top-1 accuracy of logits (N, K) on the readable images, with its interval."""
    keep = outputs.readable
    right = top_k_correct(outputs.rows.numpy()[keep], source.labels[keep], k=1)
    return interval_of_share(right, seed=seed)
