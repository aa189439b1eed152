"""The closed form of a run: the head is solved on frozen features before anything is trained, and may stay the best.

Shapes: N images, R features, K classes.
"""

import dataclasses
import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.closed_form import ClosedForm, fit_heads
from vitrine.evaluation.closed_form_candidates import TRAINED, is_right
from vitrine.evaluation.features import extract_features
from vitrine.evaluation.metrics import wilson_interval
from vitrine.models import Model
from vitrine.runs.records import ClosedFormScore, Contender, StartingModel
from vitrine.runtime.processes import Processes, on_first_process

# Minimum images x features x classes to solve a head on a GPU.
LARGE = 5e7
CLOSED_FORM, HEAD_ONLY = "closed form", "head only"
# Training starts from this fraction of the solved head's logits. A head that is already sure of the training images
# leaves the blocks little to learn (docs/experiments.md, "Closed form, fine-tuning before and now").
START_SCALE = 0.1
# Parameters of the head in a model's state.
HEAD = ("head.weight", "head.bias")


def with_solved_head(
    start: StartingModel,
    train: Source,
    *,
    is_balanced: bool,
    workers: int,
    processes: Processes,
    validation: Source | None = None,
    seed: int = 0,
) -> tuple[StartingModel, ClosedForm | None]:
    """Solve the head of a model on the training images; return the model that starts from it, and the closed form.

    Models whose logits are not one linear layer on their representation start as they are.
    """
    model = start.model
    if not can_solve_head(start):
        return start, None
    began = time.monotonic()
    features, targets = features_of(start, train, workers=workers, processes=processes)
    heads = on_first_process(
        lambda: solve(
            features, targets, num_classes=len(train.classes), is_balanced=is_balanced, processes=processes, seed=seed
        ),
        processes,
    )  # fmt: skip
    seconds = time.monotonic() - began
    held_out = None
    if validation is not None:
        held_out = features_of(start, validation, workers=workers, processes=processes)
    solved = heads[0]
    put_head(model, solved)
    score = ClosedFormScore(
        method=solved.method,
        accuracy=solved.left_out_accuracy,
        interval=wilson_interval(solved.left_out_accuracy, len(train)),
        num_images=len(train),
        seconds=seconds,
        contenders=tuple(contender(head, held_out, num_images=len(train), seconds=seconds) for head in heads),
    )
    return dataclasses.replace(start, closed_form=score), solved


def can_solve_head(start: StartingModel) -> bool:
    """Whether a model has trained weights, and its logits are one linear layer on its representation."""
    head, other = start.model.head, getattr(start.model, "distillation_head", None)
    return not start.is_fresh and head is not None and other is None


def features_of(
    start: StartingModel, source: Source, *, workers: int, processes: Processes
) -> tuple[Tensor, Tensor]:
    """Return features (N, R), computed or from the cache, and labels (N,) or flags (N, K) of all images."""
    features = extract_features(
        start.model.to(processes.device), source, preprocess=start.preprocess, num_workers=workers,
        device=processes.device,
    )  # fmt: skip
    if features.failures:
        raise DataError(f"cannot read a training image: {next(iter(features.failures.values()))}")
    return features.rows, torch.from_numpy(source.targets(np.arange(len(source)))).long()


def solve(
    features: Tensor,
    targets: Tensor,
    *,
    num_classes: int,
    is_balanced: bool,
    processes: Processes,
    seed: int = 0,
) -> tuple[ClosedForm, ...]:
    """Fit the closed form and the trained head on the device, the better one first; the results are on the CPU."""
    # A small fit on a GPU takes longer to launch than to compute.
    is_large = features.numel() * num_classes > LARGE and processes.device.type == "cuda"
    device = processes.device if is_large else torch.device("cpu")
    heads = fit_heads(
        features.to(device), targets.to(device), num_classes=num_classes, is_balanced=is_balanced, seed=seed
    )
    return tuple(head.to("cpu") for head in heads)


def name_of(head: ClosedForm) -> str:
    """Name a head by how it was found."""
    return HEAD_ONLY if head.method == TRAINED else CLOSED_FORM


def contender(
    head: ClosedForm, held_out: tuple[Tensor, Tensor] | None, *, num_images: int, seconds: float
) -> Contender:
    """Score a head on held-out features and labels; without any, by the training images that were left out."""
    accuracy = head.left_out_accuracy
    if held_out is not None:
        accuracy, num_images = float(is_right(head.scores(held_out[0]), held_out[1]).mean()), len(held_out[0])
    return Contender.of(name_of(head), accuracy, num_images=num_images, seconds=seconds)


@torch.no_grad()
def put_head(model: Model, solved: ClosedForm) -> None:
    """Give a model the head of the closed form; a head without bias takes the weights alone."""
    assert model.head is not None
    weight, bias = solved.head()
    model.head.weight.copy_(weight)
    if model.head.bias is not None:
        model.head.bias.copy_(bias)


def softened(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that training starts from: those of the closed form, with smaller logits.

    The class that is most likely stays the same; a temperature fitted later makes up for the scale.
    """
    return {name: START_SCALE * value if name in HEAD else value for name, value in weights.items()}
