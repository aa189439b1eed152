"""How a run was started: the record in `run.json`. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """`run.json`: how a run was started."""

    verb: str
    data: str
    """Address of the data set, absolute where it is a path."""
    device: str
    workers: int
    model: Mapping[str, Any]
    """Config of the model, as `checkpoints.record` writes it."""
    preprocess: Mapping[str, Any]
    objective: str = "labels"
    weights_prefix: str | None = None
    """Where the model's weights are in a checkpoint of the trained module; version 0.1 did not record it."""
    hold_out: float | None = None
    exclude: str | None = None
    shard: bool = False
    trains_on_all: bool = False
    """Whether the held-out images are trained on too, as after a sweep."""
    is_sweeping: bool = False
    """Whether learning rates are still being tried."""
    tensorboard: bool = False
    wandb: str | None = None
    launch: str | None = None
    """Identity of the torchrun that started it."""
    threads: int | None = None
    teacher: str | None = None
    """Hash of the teacher's weights, for distillation."""
