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
from vitrine.evaluation.closed_form import ClosedForm, fit_closed_form
from vitrine.evaluation.features import extract_features
from vitrine.evaluation.metrics import wilson_interval
from vitrine.models import Model
from vitrine.runs.records import ClosedFormScore, StartingModel
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.runtime.progress import notice, present


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
    if processes.is_first:
        present(score)
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
        notice(f"Cannot read {len(features.failures)} training images; the closed form does without them")
    targets = readable_targets(train, features.failures)
    return on_first_process(
        lambda: fit_closed_form(
            features.rows, targets, num_classes=len(train.classes), is_balanced=is_balanced, seed=seed
        ),
        processes,
    )


def readable_targets(source: Source, failures: Mapping[int, str]) -> Tensor:
    """Return labels (N,), or flags (N, K) with several per image, of the images that can be read."""
    rows = np.array([row for row in range(len(source)) if row not in failures])
    return torch.from_numpy(source.targets(rows)).long()


@torch.no_grad()
def put_head(model: Model, solved: ClosedForm) -> None:
    """Give a model the head of the closed form; a head without bias takes the weights alone."""
    assert model.head is not None
    weight, bias = solved.head()
    model.head.weight.copy_(weight)
    if model.head.bias is not None:
        model.head.bias.copy_(bias)
