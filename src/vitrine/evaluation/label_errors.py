"""Labels that are probably wrong: every image is scored by a closed form that has not seen it.

The images are divided into folds; ridge regression on the features of the other folds gives the probabilities of
each. A model that has learned the wrong label itself would not find it.

Shapes: N images, D features, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.evaluation.closed_form import L2_CHOICES, fit_closed_form
from vitrine.evaluation.scoring import likely_label_errors
from vitrine.runtime.files import write_table
from vitrine.spelling import printable

FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One image with the class that it probably has instead of its label."""

    index: int
    label: int
    suggested: int
    probability: float
    """Probability of the suggested class."""
    label_probability: float
    """Probability of the label."""


def find_label_errors(
    features: Tensor, labels: Tensor, *, num_classes: int, folds: int = FOLDS, seed: int = 0
) -> tuple[Suspect, ...]:
    """Return the images of features (N, D) and labels (N,) whose label is likely wrong, most suspicious first."""
    probabilities = out_of_fold_probabilities(
        features, labels, num_classes=num_classes, folds=folds, seed=seed
    )
    return suspects_of(probabilities, labels)


def suspects_of(probabilities: Tensor, labels: Tensor) -> tuple[Suspect, ...]:
    """Return the likely wrong labels (N,), most suspicious first, from left-out probabilities (N, K)."""
    rows: NDArray[np.float64] = probabilities.double().numpy()
    numbers: NDArray[np.int64] = labels.numpy()
    best = rows.argmax(axis=1)
    return tuple(
        Suspect(
            index=index,
            label=int(numbers[index]),
            suggested=int(best[index]),
            probability=float(rows[index, best[index]]),
            label_probability=float(rows[index, numbers[index]]),
        )
        for index in likely_label_errors(rows, numbers).tolist()
    )


def out_of_fold_probabilities(
    features: Tensor, labels: Tensor, *, num_classes: int, folds: int = FOLDS, seed: int = 0
) -> Tensor:
    """Return the probabilities (N, K) of each image by a closed form of the other folds."""
    counts = torch.bincount(labels, minlength=num_classes)
    if len(labels) < 2 * folds or int((counts > 1).sum()) < 2:
        raise DataError(
            f"wrong labels are found with at least {2 * folds} images and two classes of two images, got "
            f"{len(labels)} images"
        )
    fold = stratified_folds(labels, folds=folds, seed=seed)
    probabilities = torch.zeros(len(labels), num_classes, dtype=torch.float64)
    for number in range(folds):
        rest = fold != number
        fitted = fit_closed_form(features[rest], labels[rest], num_classes=num_classes, l2=L2_CHOICES)
        probabilities[~rest] = fitted.probabilities(features[~rest])
    return probabilities


def stratified_folds(labels: Tensor, *, folds: int, seed: int) -> Tensor:
    """Return the fold (N,) of each image: every class is divided evenly."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = order[labels[order].argsort(stable=True)]
    fold = torch.empty(len(labels), dtype=torch.long)
    fold[by_class] = torch.arange(len(labels)) % folds
    return fold


def write_label_errors(suspects: Sequence[Suspect], source: Source, path: Path) -> None:
    """Write `path,label,suggested,probability,label_probability`, one row per suspect, to be corrected by hand."""
    with write_table(path) as writer:
        writer.writerow(["path", "label", "suggested", "probability", "label_probability"])
        for one in suspects:
            names = (printable(source.classes[number]) for number in (one.label, one.suggested))
            shares = (f"{share:.4f}" for share in (one.probability, one.label_probability))
            writer.writerow([printable(source.name(one.index)), *names, *shares])
