"""The whole state of a run: weights, optimizer, averages, step, best result, sums not yet logged.

Random numbers need no state: every step derives its seed from the run's seed and the step.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitrine.errors import CheckpointError
from vitrine.training.averages import WeightAverages
from vitrine.training.monitor import Monitor

# The values of a state that are not tensors. Versions before 0.1 did not save all of them.
NUMBERS: dict[str, Any] = {
    "step": int,
    "best": float | int | None,
    "best_step": int | None,
    "best_loss": float | int | None,
    "evaluations_since_best": int,
    "evaluated_step": int | None,
    "micro_batch": int | None,
    "sums": dict,
    "monitor": dict,
}


@dataclass
class TrainingState:
    """Everything that a step changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    averages: WeightAverages | None
    step: int = 0
    """Steps done."""
    best: float | None = None
    best_step: int | None = None
    best_loss: float | None = None
    """The lowest loss, if the loss selects the best weights; `best` is then the metric of the same evaluation."""
    evaluations_since_best: int = 0
    evaluated_step: int | None = None
    """The step of the last evaluation, so that a run that stopped right after it does not repeat it."""
    micro_batch: int | None = None
    """Set if smaller than a process's share of the batch, so that a resumed run adds up in the same order."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums since the last logged step, so that a resumed run logs the same means."""
    watched: Monitor = field(default_factory=Monitor)
    """Earlier losses, so that a resumed run reports the same spikes and gaps."""

    def numbers(self) -> dict[str, Any]:
        """Return the values that are not tensors."""
        numbers = {name: getattr(self, name) for name in NUMBERS if name != "monitor"}
        if numbers["best_loss"] is None:  # versions before 0.2 cannot read it
            del numbers["best_loss"]
        return {**numbers, "monitor": self.watched.numbers()}

    def compared(self, value: float | None, loss: float | None) -> tuple[bool, bool]:
        """Return whether an evaluation is better than the best so far, and whether it is as good.

        The lower loss is better if both have one, otherwise the higher metric.
        """
        if value is None:
            return False, False
        if self.best is None:
            return True, False
        if loss is not None and self.best_loss is not None:
            return loss < self.best_loss, loss == self.best_loss
        return value > self.best, value == self.best

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor under a name with its owner as prefix."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for parameter, name in parameter_names(self.optimizer):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{name}:{key}"] = value
        if self.averages is not None:
            tensors |= {f"averages.{name}": value for name, value in self.averages.weights.items()}
        return tensors

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to use, under the names of `tensors`: the averages, if there are any."""
        prefix = "model." if self.averages is None else "averages."
        values = self.model.state_dict() if self.averages is None else self.averages.weights
        return {f"{prefix}{name}": value for name, value in values.items()}


def num_bytes(tensors: dict[str, Tensor]) -> int:
    """Count the bytes of tensors, including the shards of other processes."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


def parameter_names(optimizer: torch.optim.Optimizer) -> list[tuple[nn.Parameter, str]]:
    """List the trained parameters with their names in the model."""
    return [
        (parameter, name)
        for group in optimizer.param_groups
        for parameter, name in zip(group["params"], group["names"], strict=True)
    ]


def checked_numbers(values: Any) -> dict[str, Any]:
    """Return values read from a file; refuse unknown names and wrong types."""
    if not isinstance(values, dict) or type(values.get("step")) is not int or values["step"] < 0:
        raise CheckpointError("it does not say how many steps were taken")
    for name, value in values.items():
        if name not in NUMBERS or not isinstance(value, NUMBERS[name]):
            raise CheckpointError(f"its value of {name} is {value!r:.40}")
    for name, value in values.get("sums", {}).items():
        if not isinstance(value, float | int):
            raise CheckpointError(f"its sum of {name} is {value!r:.40}")
    return values


def put_back(state: TrainingState, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Fill `state` with tensors that were read; refuse other shapes."""
    state.model.load_state_dict(section(tensors, "model."))
    saved = section(tensors, "optimizer.")
    for parameter, name in parameter_names(state.optimizer):
        own = {
            key.rpartition(":")[2]: value for key, value in saved.items() if key.rpartition(":")[0] == name
        }
        for key, value in own.items():
            if value.dim() and value.shape != parameter.shape:  # a count of steps has no dimension
                raise CheckpointError(f"{key} of {name} has the shape {tuple(value.shape)}")
        if own:
            state.optimizer.state[parameter] = own
    if state.averages is not None:
        averages = section(tensors, "averages.")
        if _shapes(averages) != _shapes(state.averages.weights):
            raise CheckpointError("its averages belong to another model")
        state.averages.restore(averages)
    state.watched = Monitor.of(numbers.get("monitor", {}))
    for name, value in numbers.items():
        if name != "monitor":
            setattr(state, name, value)


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def fill_optimizer(state: TrainingState) -> None:
    """Create the optimizer's tensors by a step that changes nothing, so that they can be filled."""
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
