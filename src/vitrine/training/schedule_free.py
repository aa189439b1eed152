"""Schedule-free AdamW (arXiv:2405.15682): an average of the weights replaces the decay of the learning rate.

Three sequences of weights: steps move z, x is the average of all z, and gradients are taken at y between both. With
learning rate l, decay d and u = g / (sqrt(v) + eps) + d y, where g is the gradient at y and v its bias-corrected
second moment (section 3 of the paper, in the order of the authors' implementation):

    z <- z - l u
    x <- (1 - c) x + c z        with c = l^2 / (sum of all l^2 so far)
    y  = (1 - b) z + b x        with b the first of `betas`

The model contains y, the optimizer z; x is computed from both. Evaluations, checkpoints and the saved model use x.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from vitrine.training.averages import lent
from vitrine.training.guarded_optimizer import GuardedOptimizer

EPS = 1e-8


class ScheduleFree(GuardedOptimizer):
    """AdamW without a schedule; `averages` returns the weights to use."""

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float = EPS) -> None:
        super().__init__(groups, betas=betas, eps=eps)

    def update(
        self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], is_good: Tensor | float
    ) -> None:
        """Take one step; y, in the paper's words, is the parameter that gradients are taken at."""
        y = parameter
        state, (first, second), rate = self.state[y], group["betas"], group["lr"]
        if not state:
            state["step"] = torch.zeros((), device=y.device)
            # In fp64: after a million steps fp32 would no longer add small squares exactly. MPS has no fp64.
            kind = torch.float32 if y.device.type == "mps" else torch.float64
            state["squares"] = torch.zeros((), device=y.device, dtype=kind)
            state["z"], state["exp_avg_sq"] = y.clone(), torch.zeros_like(y)
        step, squares, z, square = state["step"], state["squares"], state["z"], state["exp_avg_sq"]
        step += is_good
        square.lerp_(gradient.square(), (1 - second) * is_good)
        corrected = square / (1 - second ** step.clamp(min=1))
        update = (gradient / (corrected.sqrt() + group["eps"]) + group["weight_decay"] * y) * (rate * is_good)
        squares += rate**2 * is_good
        # The first step of a warm-up has a rate of 0 and changes nothing.
        share = (rate**2 * is_good / squares.clamp(min=1e-38)).to(y.dtype)
        y.lerp_(z, share)
        y.add_(update * (first * (1 - share) - 1))
        z.sub_(update)

    def averages(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and average x of every parameter that was updated."""
        for group in self.param_groups:
            for name, y in zip(group["names"], group["params"], strict=True):
                if self.state.get(y):
                    yield name, y.detach().lerp(self.state[y]["z"], 1 - 1 / group["betas"][0])


class ScheduleFreeAverages:
    """The averages of a schedule-free run, as the state of a run keeps them; nothing has to be updated."""

    def __init__(self, model: nn.Module, optimizer: ScheduleFree) -> None:
        self._model, self._optimizer = model, optimizer

    @property
    def weights(self) -> dict[str, Tensor]:
        """Every weight and buffer of the model, averaged if it is trained."""
        return {name: value.detach() for name, value in self._model.state_dict().items()} | dict(
            self._optimizer.averages()
        )

    def update(self, *, step: int) -> None:
        """Do nothing: the optimizer's step has moved the average already."""

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Do nothing: the average follows from the model and the optimizer."""

    def applied_to(self, model: nn.Module) -> AbstractContextManager[nn.Module]:
        """Use the averaged weights in the model inside the block."""
        return lent(self.weights, model)
