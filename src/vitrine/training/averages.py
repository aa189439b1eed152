"""Averages of the weights of a run, which evaluations, checkpoints and the saved model use instead of the weights.

Polyak averaging is an exponential average of all weights (section 4.1 of the paper).
"""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class WeightAverages(Protocol):
    """Averages of the weights, however they are computed."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """The averages of all weights and buffers."""

    def update(self, *, step: int) -> None:
        """Update the averages after `step` (from 0)."""

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Continue from saved averages."""

    def applied_to(self, model: nn.Module) -> AbstractContextManager[nn.Module]:
        """Use the averaged weights in the model inside the block."""


class Averages:
    """An exponential average of every weight; its decay is lower at first, to forget the initial weights."""

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        # The model's own tensors, which steps change in place: listing them at every step takes milliseconds.
        self._followed = dict(model.state_dict())
        self.weights: dict[str, Tensor] = {
            name: value.detach().clone() for name, value in self._followed.items()
        }
        numbers = {name: value for name, value in self._followed.items() if value.is_floating_point()}
        # Sharded weights and whole buffers cannot be in one call.
        self._groups = [
            [name for name, value in numbers.items() if isinstance(value, DTensor) == is_shared]
            for is_shared in (True, False)
        ]

    @torch.no_grad()
    def update(self, *, step: int) -> None:
        """Move towards the model's weights after `step` (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for names in self._groups:
            mine, theirs = ([source[name] for name in names] for source in (self.weights, self._followed))
            if names:
                torch._foreach_lerp_(mine, theirs, 1 - decay)

    def restore(self, weights: dict[str, Tensor]) -> None:
        """Continue from saved averages."""
        self.weights = weights

    def applied_to(self, model: nn.Module) -> AbstractContextManager[nn.Module]:
        """Use the averaged weights in the model inside the block."""
        return lent(self.weights, model)


@contextmanager
def lent(weights: dict[str, Tensor], model: nn.Module) -> Iterator[nn.Module]:
    """Use other weights in the model inside the block."""
    current = copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    try:
        yield model
    finally:
        model.load_state_dict(current)
