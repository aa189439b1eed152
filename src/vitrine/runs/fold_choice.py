"""The choice of a cross-validated run: the closed form, the mean of its networks, or weights between both.

Every image is scored once, by the network that was trained without it.

Shapes: N images, K classes.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.evaluation.calibration import CalibrationFit, calibrated_rows
from vitrine.evaluation.closed_form import ClosedForm
from vitrine.evaluation.closed_form_candidates import is_right
from vitrine.evaluation.outputs import Outputs
from vitrine.evaluation.temperature import calibrated_loss, divide_head
from vitrine.models import Model
from vitrine.runs.fast_run import scored
from vitrine.runs.mixing import with_weights
from vitrine.runs.records import Contender, StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runs.run_outcome import FINE_TUNED, between_name
from vitrine.runs.solved_head import softened

LAST_SHARE = 1.0

Fold: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Indices of the images that a fold's network learns from, and of those that it is scored on."""


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """One trained fold: its weights before and after, and its logits on its own images."""

    first: dict[str, Tensor]
    last: dict[str, Tensor]
    logits: dict[float, Tensor]
    """Keyed by the share of the trained weights; share 0 is the start, a head that was solved without the fold."""
    heads: dict[str, Tensor]
    """Logits of the closed form and of the trained head, both without the fold."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The model that is saved, and the scores that led to it."""

    share: float
    """Share of the change that training made: 0 is the closed form."""
    model: Model
    """Calibrated."""
    outputs: Outputs
    """Calibrated logits of all training images, each by a network without it."""
    calibration: CalibrationFit
    before: dict[str, float]
    """Loss and accuracy of the closed form on left-out images."""
    accuracies: dict[str, float]
    """Scores of the heads and of the end of training on the same left-out images, if all folds were trained."""


def is_gain(losses: Mapping[float, float]) -> bool:
    """Whether training, or a share of it, has a lower log loss than the closed form."""
    return min(losses.values()) < losses[0.0]


def chosen(
    start: StartingModel,
    solved: ClosedForm,
    data: RunData,
    folds: Sequence[Fold],
    results: Sequence[FoldResult],
) -> Choice:
    """Choose the share with the least log loss on all left-out images, and build the model at it."""
    targets = torch.from_numpy(data.train.targets(np.arange(len(data.train)))).long()
    first = {name: value.detach().cpu() for name, value in start.model.state_dict().items()}
    before = Outputs(rows=solved.left_out_logits.float(), failures={})
    rows, named = {0.0: before.rows}, dict[str, Tensor]()
    if len(results) == len(folds):
        rows = {share: pooled(folds, [one.logits[share] for one in results]) for share in results[0].logits}
        named = {name: pooled(folds, [one.heads[name] for one in results]) for name in results[0].heads}
        named[FINE_TUNED] = rows[LAST_SHARE]
    losses = {share: calibrated_loss(logits, targets) for share, logits in rows.items()}
    share = min(losses, key=lambda one: losses[one])
    # Without a gain the closed form is that of all images: its own left-out scores come from larger fits.
    outputs, calibration = calibrated_rows(
        Outputs(rows=before.rows if share == 0 else rows[share], failures={}), targets
    )
    model = with_weights(start.model.config, moved(first, results, share))
    divide_head(model, calibration.temperature)
    return Choice(
        share=share,
        model=model,
        outputs=outputs,
        calibration=calibration,
        before=scored(before, data.train),
        accuracies={name: float(is_right(logits, targets).mean()) for name, logits in named.items()},
    )


def pooled(folds: Sequence[Fold], parts: Sequence[Tensor]) -> Tensor:
    """Put the logits of each fold at the places of its images: (N, K)."""
    rows = torch.zeros(sum(len(fold) for _, fold in folds), parts[0].shape[1])
    for (_, fold), part in zip(folds, parts, strict=True):
        rows[fold] = part
    return rows


def moved(first: dict[str, Tensor], results: Sequence[FoldResult], share: float) -> dict[str, Tensor]:
    """Move the weights by a share of the mean change of the folds; share 0 is the closed form as it was solved."""
    if share == 0:
        return first
    weights = {}
    for name, value in softened(first).items():
        changes = [result.last[name] - result.first[name] for result in results]
        weights[name] = (
            value + share * torch.stack(changes).mean(dim=0) if value.is_floating_point() else value
        )
    return weights


def contenders_of(
    start: StartingModel, choice: Choice, *, accuracy: float, num_images: int, seconds: float
) -> tuple[Contender, ...]:
    """List what the run chose from, with the saved one marked."""
    assert start.closed_form is not None
    first, *others = start.closed_form.contenders
    rows = [dataclasses.replace(first, is_saved=choice.share == 0), *others]
    if choice.accuracies and choice.share:  # on the same folds, so that they can be compared
        rows = [
            Contender.of(one.name, choice.accuracies[one.name], num_images=num_images, seconds=one.seconds)
            for one in rows
            if one.name in choice.accuracies
        ]
    made = functools.partial(Contender.of, num_images=num_images, seconds=seconds)
    if FINE_TUNED in choice.accuracies:
        trained = made(FINE_TUNED, choice.accuracies[FINE_TUNED])
        rows.append(dataclasses.replace(trained, is_saved=choice.share == LAST_SHARE))
    if 0 < choice.share < LAST_SHARE:
        rows.append(dataclasses.replace(made(between_name(choice.share), accuracy), is_saved=True))
    return tuple(rows)
