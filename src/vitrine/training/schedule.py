"""Learning rate by step: linear warm-up, then the decay of the recipe (appendix B.1)."""

import math
from typing import Literal

Decay = Literal["cosine", "linear", "steps", "constant"]


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup_steps: int,
    total_steps: int,
    decay: Decay = "cosine",
    end: float = 0.0,
    boundaries: tuple[float, ...] = (),
) -> float:
    """Return the rate of `step` (from 0): LR = base x decay(progress) x min(1, step / warm-up).

    `progress` runs from 0 at the end of the warm-up to 1 at `total_steps`. `steps` divides by ten at each of
    `boundaries`, shares of the whole run (BiT-HyperRule).
    """
    warmup = min(warmup_steps, total_steps)
    progress = min(max((step - warmup) / max(total_steps - warmup, 1), 0.0), 1.0)
    if decay == "cosine":
        rate = end + (peak - end) * (1 + math.cos(math.pi * progress)) / 2
    elif decay == "linear":
        rate = end + (peak - end) * (1 - progress)
    elif decay == "steps":
        rate = peak * 0.1 ** sum(step >= share * total_steps for share in boundaries)
    else:
        rate = peak
    return rate * min(1.0, step / warmup) if warmup else rate
