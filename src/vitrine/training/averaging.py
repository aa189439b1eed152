"""Polyak averaging: a second set of weights that follows the first one slowly (section 4.1)."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Averages:
    """An exponential average of every weight; young averages forget faster, so that the start does not linger."""

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, *, step: int) -> None:
        """Move towards the model's weights after `step` (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = model.state_dict()
        mine = [self.weights[name] for name in current if current[name].is_floating_point()]
        theirs = [value for value in current.values() if value.is_floating_point()]
        torch._foreach_lerp_(mine, theirs, 1 - decay)

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[nn.Module]:
        """Lend the averaged weights to the model for the length of the block."""
        current = copy.deepcopy(model.state_dict())
        model.load_state_dict(self.weights)
        try:
            yield model
        finally:
            model.load_state_dict(current)
