"""Pixels labelled in closed form from a few masks: regularised least squares on the tokens of a frozen ViT.

A token's target is the share of each class among the labelled pixels of its patch. The solution is a linear layer, so
that it predicts, is served and is exported as any linear head. Shapes: P patches of all windows of some pictures,
D width, K classes, GH x GW patches of a window.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrine.data.decoding.annotation import Map
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.outputs import Precision, casting
from vitrine.evaluation.pixel_predictions import covering
from vitrine.evaluation.reading_ahead import read_ahead
from vitrine.evaluation.ridge import BIAS_FEATURE, Normalisation, ridge_solutions, with_constant
from vitrine.evaluation.segmentation import Counts, PixelScore, confusion_of
from vitrine.models.dense.linear import LinearSegmenter
from vitrine.models.dense.windows import class_maps, window_places
from vitrine.runtime.progress import track

# Patches with fewer labelled pixels than this share are left out.
LEAST_LABELLED = 0.5
DEFAULT_L2 = 1024.0


@dataclass(frozen=True, kw_only=True)
class PictureTokens:
    """The tokens of the windows of one picture."""

    maps: Tensor
    """(windows, D, GH, GW) in half precision."""
    resized: tuple[int, int]
    """Height and width of the picture that was cut into windows."""
    size: tuple[int, int]
    """Height and width of the picture as it is stored."""


@dataclass(frozen=True, kw_only=True)
class PixelShots:
    """Mean IoU with a number of masks, per seed."""

    shots: int
    mean_ious: tuple[float, ...]
    pixel_accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.mean_ious)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds (n - 1); None with one seed."""
        return statistics.stdev(self.mean_ious) if len(self.mean_ious) > 1 else None


def picture_tokens(
    model: LinearSegmenter,
    source: Source,
    indices: Sequence[int],
    *,
    preprocess: Preprocess,
    device: torch.device,
    num_workers: int,
    precision: Precision = "fp32",
) -> Iterator[tuple[int, PictureTokens]]:
    """Compute the tokens of pictures, window by window; a picture that cannot be read is refused."""
    window = preprocess.size
    with torch.no_grad(), casting(device, precision):
        for read in read_ahead(
            source, indices, preprocess=preprocess, num_workers=num_workers, resize=covering
        ):
            if read.resized is None:
                raise DataError(read.error or "a picture cannot be read")
            picture = preprocess.normalise(read.resized.to(device))
            size = (picture.shape[1], picture.shape[2])
            maps = [
                model.maps(picture[None, :, top : top + window[0], left : left + window[1]])[0].half().cpu()
                for top, left in window_places(size, window)
            ]
            yield read.index, PictureTokens(maps=torch.stack(maps), resized=size, size=read.size)


def patch_targets(
    classes: Map, tokens: PictureTokens, *, window: tuple[int, int], num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return the share of each class in each patch (P, K), and the share of its pixels that is labelled (P,)."""
    GH, GW = tokens.maps.shape[2:]
    resized = F.interpolate(
        torch.from_numpy(np.ascontiguousarray(classes))[None, None].float(), size=tokens.resized, mode="nearest"
    )[0, 0].long()  # fmt: skip
    side = window[0] // GH, window[1] // GW
    shares = []
    for top, left in window_places(tokens.resized, window):
        cut = resized[top : top + GH * side[0], left : left + GW * side[1]]
        patches = cut.reshape(GH, side[0], GW, side[1]).permute(0, 2, 1, 3).reshape(GH * GW, -1)
        counts = torch.zeros(GH * GW, 256).scatter_add_(1, patches, torch.ones(patches.shape))
        shares.append(counts[:, :num_classes])
    counts = torch.cat(shares)
    labelled = counts.sum(dim=1)
    return counts / labelled.clamp_min(1)[:, None], labelled / (side[0] * side[1])


def solved(
    examples: Sequence[tuple[PictureTokens, Map]],
    *,
    window: tuple[int, int],
    num_classes: int,
    l2: float = DEFAULT_L2,
) -> tuple[Tensor, Tensor]:
    """Return weight (K, D) and bias (K,) of the linear layer that fits some masks best."""
    rows, targets = [], []
    for tokens, classes in examples:
        shares, labelled = patch_targets(classes, tokens, window=window, num_classes=num_classes)
        kept = labelled >= LEAST_LABELLED
        rows.append(tokens.maps.permute(0, 2, 3, 1).flatten(0, 2)[kept].float())
        targets.append(shares[kept])
    features = torch.cat(rows)
    if not len(features):
        raise DataError("no patch of these masks is labelled")
    normalise = Normalisation.of(features)
    Y = 2 * torch.cat(targets).double() - 1  # (P, K)
    (W,) = ridge_solutions(with_constant(normalise(features)), Y, l2=[l2])  # (D + 1, K)
    weight = W[:-1] / normalise.std[:, None]
    bias = BIAS_FEATURE * W[-1] - normalise.mean @ weight
    return weight.T.float(), bias.float()


def predicted_map(tokens: PictureTokens, weight: Tensor, bias: Tensor, *, window: tuple[int, int]) -> Map:
    """Return the most likely class of every pixel of a picture (H, W), as prediction with windows does."""
    blank = torch.zeros(1, *tokens.resized)

    def scores_of(windows: Tensor) -> Tensor:
        assert len(windows) == len(tokens.maps)
        return torch.einsum("kd,bdhw->bkhw", weight, tokens.maps.float()) + bias[:, None, None]

    (classes,) = class_maps(
        [blank], scores_of, sizes=[tokens.size], window=window, most_windows=len(tokens.maps)
    )
    result: Map = classes.numpy()
    return result


def draw_pictures(count: int, *, shots: int, seed: int) -> list[int]:
    """Choose pictures: the first `shots` of a permutation, so that a seed's single one is among its five."""
    return np.random.default_rng(seed).permutation(count)[:shots].tolist()


def score_shots(
    train: Mapping[int, tuple[PictureTokens, Map]],
    test: Sequence[tuple[PictureTokens, Map]],
    *,
    draws: Mapping[tuple[int, int], Sequence[int]],
    classes: tuple[str, ...],
    window: tuple[int, int],
    l2: float = DEFAULT_L2,
) -> tuple[PixelShots, ...]:
    """Solve each draw, by (shots, seed), and score it on the test pictures."""
    scores: dict[int, list[PixelScore]] = {}
    for (shots, _), indices in track(draws.items(), "Few masks", total=len(draws)):
        weight, bias = solved(
            [train[index] for index in indices], window=window, num_classes=len(classes), l2=l2
        )
        total: Counts = np.zeros((len(classes), len(classes) + 1), dtype=np.int64)
        for tokens, truth in test:
            total += confusion_of(
                truth, predicted_map(tokens, weight, bias, window=window), num_classes=len(classes)
            )
        scores.setdefault(shots, []).append(
            PixelScore(classes=classes, confusion=total, num_images=len(test))
        )
    return tuple(
        PixelShots(
            shots=shots,
            mean_ious=tuple(one.mean_iou for one in own),
            pixel_accuracies=tuple(one.pixel_accuracy for one in own),
        )
        for shots, own in sorted(scores.items())
    )


def with_solution(model: LinearSegmenter, weight: Tensor, bias: Tensor) -> LinearSegmenter:
    """Set a linear head to a solution; its norm, which has no statistics yet, is set to change nothing."""
    decoder = model.decoder
    norm, layer = decoder.norm, decoder.classify
    assert norm.running_mean is not None and norm.running_var is not None and layer.bias is not None
    with torch.no_grad():
        norm.running_mean.zero_()
        norm.running_var.fill_(1.0)
        norm.weight.fill_(math.sqrt(1.0 + norm.eps))
        norm.bias.zero_()
        layer.weight.copy_(weight[:, :, None, None])
        layer.bias.copy_(bias)
    return model
