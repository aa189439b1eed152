"""The closed form of a run: the head is solved on frozen features before anything is trained, and may stay the best.

Shapes: N images, R features, K classes.
"""

import dataclasses
import time

import numpy as np
import torch

from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.closed_form import ClosedForm, fit_closed_form
from vitrine.evaluation.features import extract_features
from vitrine.evaluation.metrics import wilson_interval
from vitrine.models import Model
from vitrine.runs.records import ClosedFormScore, StartingModel
from vitrine.runtime.processes import Processes, on_first_process


def with_solved_head(
    start: StartingModel,
    train: Source,
    *,
    is_balanced: bool,
    workers: int,
    processes: Processes,
    seed: int = 0,
) -> tuple[StartingModel, ClosedForm | None]:
    """Solve the head of a model on the training images; return the model that starts from it, and the closed form.

    Models whose logits are not one linear layer on their representation start as they are.
    """
    model = start.model
    if start.is_fresh or model.head is None or getattr(model, "distillation_head", None) is not None:
        return start, None
    began = time.monotonic()
    solved = solve(
        model, train, start=start, is_balanced=is_balanced, workers=workers, processes=processes, seed=seed
    )
    put_head(model, solved)
    score = ClosedFormScore(
        method=solved.method,
        accuracy=solved.left_out_accuracy,
        interval=wilson_interval(solved.left_out_accuracy, len(train)),
        num_images=len(train),
        seconds=time.monotonic() - began,
    )
    return dataclasses.replace(start, closed_form=score), solved


def solve(
    model: Model,
    train: Source,
    *,
    start: StartingModel,
    is_balanced: bool,
    workers: int,
    processes: Processes,
    seed: int = 0,
) -> ClosedForm:
    """Compute the features of the training images, or find them in the cache, and fit the closed form."""
    features = extract_features(
        model.to(processes.device), train, preprocess=start.preprocess, num_workers=workers, device=processes.device,
    )  # fmt: skip
    if features.failures:
        raise DataError(f"cannot read a training image: {next(iter(features.failures.values()))}")
    targets = torch.from_numpy(train.targets(np.arange(len(train)))).long()
    return on_first_process(
        lambda: fit_closed_form(
            features.rows, targets, num_classes=len(train.classes), is_balanced=is_balanced, seed=seed
        ),
        processes,
    )


@torch.no_grad()
def put_head(model: Model, solved: ClosedForm) -> None:
    """Give a model the head of the closed form; a head without bias takes the weights alone."""
    assert model.head is not None
    weight, bias = solved.head()
    model.head.weight.copy_(weight)
    if model.head.bias is not None:
        model.head.bias.copy_(bias)
