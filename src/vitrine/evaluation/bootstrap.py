"""95 % intervals by drawing the test images again, with replacement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})"


def interval_of_share(flags: NDArray[Any], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Bootstrap the share of images that were right; where all or none were, resamples would leave no doubt."""
    share = float(flags.mean())
    if share in (0.0, 1.0):
        low, high = wilson_interval(share, len(flags))
        return Interval(value=share, low=low, high=high)
    return interval_of(lambda rows: float(flags[rows].mean()), len(flags), seed=seed, resamples=resamples)


def interval_of(
    statistic: Callable[[NDArray[np.int64]], float],
    num_images: int,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Bootstrap any figure of a choice of images, given by their numbers: percentiles over the resamples."""
    generator = np.random.default_rng(seed)
    drawn = [statistic(generator.integers(0, num_images, num_images)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value=statistic(np.arange(num_images)), low=float(low), high=float(high))


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` trials (Wilson, 1927), sane near 0 and 1 too."""
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return max(middle - half, 0.0), min(middle + half, 1.0)
