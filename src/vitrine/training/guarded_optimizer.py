"""Optimizers that skip a bad step on the device, as torch's fused ones do: the host never waits for the flag."""

from typing import Any

import torch
from torch import Tensor


class GuardedOptimizer(torch.optim.Optimizer):
    """An optimizer of one parameter at a time; a subclass says how `update` changes it."""

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": 1.0, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter; change nothing if `found_inf` flags a gradient with NaN or infinity."""
        is_bad = getattr(self, "found_inf", None)
        is_good: Tensor | float = 1.0 if is_bad is None else (is_bad == 0).float()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad
                    if is_bad is not None:  # zeros if anything is NaN or infinity, to keep the state valid
                        gradient = torch.where(is_bad > 0, 0.0, gradient)
                    self.update(parameter, gradient, group, is_good)

    def update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], is_good: Tensor | float
    ) -> None:
        """Change a parameter and its state in place; with `is_good` 0, not at all."""
        raise NotImplementedError
