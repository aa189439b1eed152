"""The task of the loop, as functions (batches, loss, evaluation), and the outcome of training."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from vitrine.data.loading.loader import Batch
from vitrine.training.phases import Phase
from vitrine.training.step import LossOf, Parts

Evaluate = Callable[[nn.Module], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The task, as functions."""

    batches: Callable[[int, int], Iterator[Batch]]
    """From (start, stop) to the batches of these steps, a pure function of seed and step."""
    prepare: Callable[[Batch], Parts]
    """From a batch to the inputs of the loss, on the device: augmented, normalised."""
    loss_of: LossOf
    divides_batch: bool = True
    """Whether a batch may be divided into micro-batches."""
    evaluate: Evaluate | None = None
    metric: str | None = "accuracy"
    """The metric of the evaluation that selects the best weights; higher is better. None keeps the last weights."""
    criterion: str | None = None
    """A loss of the evaluation that selects them instead of the metric; lower is better."""
    evaluates_start: bool = False
    """Whether the model is also evaluated before the first step, because it may be good already."""
    on_best: Callable[[], None] | None = None
    """Called after the weights of the best evaluation so far were saved."""
    after_step: Callable[[nn.Module, dict[str, torch.Tensor], int, torch.Tensor], None] | None = None
    """Called after every update with the model, the sums of the step, the step (from 0) and the flag of NaN or
    infinity: updates the parts without gradients. Sums that it removes are not logged."""
    draw: Callable[[nn.Module, int], None] | None = None
    """Called at every evaluation with the model and the number of steps, to draw the model's outputs."""
    phases: tuple[Phase, ...] = ()
    """Phases of the run; `prepare` applies their image sizes and patches."""
    names_of: Callable[[int], Sequence[str]] = field(default=lambda step: ())
    """The files of a step's batch, for messages."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How training ended."""

    steps: int
    best: float | None
    best_step: int | None
    last_evaluation: dict[str, float]
    images_per_second: float
    seconds: float | None = None
    """Seconds of this session, evaluations included."""
