"""LAMB (arXiv:1904.00962): Adam whose update of each tensor is scaled to the size of the tensor, for large batches.

For a weight w with gradient g, moments m and v, bias-corrected as in Adam, and decay d:

    u = m / (sqrt(v) + eps) + d w
    w <- w - lr (|w| / |u|) u

As in the implementation that DeiT III was trained with (apex), tensors without decay (norms, biases, tokens) are not
scaled. It also clips the gradient at a global norm of 1, which here is `clip_norm`.
"""

from typing import Any

import torch
from torch import Tensor

from vitrine.training.guarded_optimizer import GuardedOptimizer

EPS = 1e-6


class Lamb(GuardedOptimizer):
    """Layer-wise adaptive moments."""

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float = EPS) -> None:
        super().__init__(groups, betas=betas, eps=eps)

    def update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], is_good: Tensor | float
    ) -> None:
        """Move both moments and take one step, scaled by the norms of weights and update."""
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        step += is_good
        # A skipped step does not change the moments either.
        mean.lerp_(gradient, (1 - first) * is_good)
        square.lerp_(gradient.square(), (1 - second) * is_good)
        # Before the first good step both moments are zero; the correction must not divide by zero then.
        counted = step.clamp(min=1)
        update = (mean / (1 - first**counted)) / ((square / (1 - second**counted)).sqrt() + group["eps"])
        decay = group["weight_decay"]
        if decay:
            update = update + decay * parameter
            size, change = parameter.norm(), update.norm()
            update = update * torch.where((size > 0) & (change > 0), size / change.clamp(min=1e-38), 1.0)
        parameter.sub_(update * (group["lr"] * is_good))
