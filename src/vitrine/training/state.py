"""The whole state of a run: weights, optimizer, averages, step, best result, sums not yet logged.

Random numbers need no state: every step draws from a seed made of the run's seed and the step.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitrine.training.averaging import Averages


@dataclass
class TrainingState:
    """Everything that a step changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    averages: Averages | None
    step: int = 0
    """Steps done."""
    best: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    evaluated_step: int | None = None
    """The step of the last evaluation, so that a run that stopped right after it does not repeat it."""
    micro_batch: int | None = None
    """Set where it is smaller than a process's share of the batch: sums are added up in the same order again."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums since the last logged step, so that a resumed run logs the same means."""

    def numbers(self) -> dict[str, Any]:
        """Return what is not a tensor."""
        names = (
            "step", "best", "best_step", "evaluations_since_best", "evaluated_step", "micro_batch", "sums",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor under a name that says whose it is."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for parameter, name in parameter_names(self.optimizer):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{name}:{key}"] = value
        if self.averages is not None:
            found |= {f"averages.{name}": value for name, value in self.averages.weights.items()}
        return found


def parameter_names(optimizer: torch.optim.Optimizer) -> list[tuple[nn.Parameter, str]]:
    """List the trained parameters with their names in the model."""
    return [
        (parameter, name)
        for group in optimizer.param_groups
        for parameter, name in zip(group["params"], group["names"], strict=True)
    ]


def put_back(state: TrainingState, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Fill `state` with what was read."""
    state.model.load_state_dict(section(tensors, "model."))
    saved = section(tensors, "optimizer.")
    for parameter, name in parameter_names(state.optimizer):
        own = {
            key.rpartition(":")[2]: value for key, value in saved.items() if key.rpartition(":")[0] == name
        }
        if own:
            state.optimizer.state[parameter] = own
    if state.averages is not None:
        state.averages.weights = section(tensors, "averages.")
    for name, value in numbers.items():
        setattr(state, name, value)


def section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def fill_optimizer(state: TrainingState) -> None:
    """Make the optimizer's tensors, so that they can be filled, by a step that changes nothing."""
    optimizer = state.optimizer
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for parameter, _ in parameter_names(optimizer):
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
