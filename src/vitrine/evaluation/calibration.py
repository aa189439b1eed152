"""Whether a model is correct as often as its confidence claims: reliability bins, ECE, log loss, Brier score."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15  # as Guo et al., arXiv:1706.04599


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Images with confidence above `low` and at most `high`; means are None in an empty bin."""

    low: float
    high: float
    num_images: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Expected calibration error with the bins it comes from, mean log loss and Brier score."""

    ece: float
    log_loss: float
    brier: float
    bins: tuple[ReliabilityBin, ...]

    @property
    def mean_confidence(self) -> float:
        """Mean probability of the answers."""
        num_images = sum(one.num_images for one in self.bins)
        return sum(one.num_images * (one.confidence or 0.0) for one in self.bins) / max(num_images, 1)


def measure_calibration(
    probabilities: NDArray[Any], labels: NDArray[Any], *, num_bins: int = BINS
) -> Calibration:
    """Compare confidence with accuracy in bins of equal width, on probabilities (N, K) and labels (N,)."""
    confidence = probabilities.max(axis=1).astype(np.float64)
    is_right = probabilities.argmax(axis=1) == labels
    edges = np.linspace(0, 1, num_bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    bins = []
    for number in range(num_bins):
        inside = place == number
        count = int(inside.sum())
        bins.append(
            ReliabilityBin(
                low=float(edges[number]),
                high=float(edges[number + 1]),
                num_images=count,
                confidence=float(confidence[inside].mean()) if count else None,
                accuracy=float(is_right[inside].mean()) if count else None,
            )
        )
    own = np.take_along_axis(probabilities, labels[:, None].astype(np.int64), axis=1)[:, 0].astype(np.float64)
    squares = np.einsum("nk,nk->n", probabilities, probabilities, dtype=np.float64)
    return Calibration(
        ece=sum(b.num_images * abs((b.confidence or 0) - (b.accuracy or 0)) for b in bins) / len(labels),
        # log(0) is undefined: a probability that rounds to 0 is replaced by the smallest float32.
        log_loss=float(-np.log(np.maximum(own, np.finfo(np.float32).tiny)).mean()),
        brier=float((squares - 2 * own + 1).mean()),
        bins=tuple(bins),
    )


def softmax(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Turn logits (N, K) into probabilities."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float32)
    return shifted / shifted.sum(axis=1, keepdims=True)
