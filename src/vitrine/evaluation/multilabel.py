"""Images with several labels: average precision by class, and its mean.

Shapes: N images, K classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.source import NO_LABEL
from vitrine.errors import DataError


def average_precisions(scores: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Area under each class's precision-recall steps (K,); NaN for a class that no image has."""
    order = np.argsort(-scores, axis=0, kind="stable")
    found = np.full(scores.shape[1], np.nan)
    for k in np.flatnonzero(present.any(axis=0)):
        ranked, values = present[order[:, k], k], scores[order[:, k], k]
        # Images with equal scores come in together: only the last of them is a threshold.
        last = np.flatnonzero(np.append(np.diff(values) != 0, True))
        hits = np.cumsum(ranked)[last]
        precision, recall = hits / (last + 1), hits / hits[-1]
        found[k] = float(np.sum(np.diff(recall, prepend=0) * precision))
    return found


def mean_average_precision(scores: NDArray[Any], present: NDArray[np.bool_]) -> float:
    """Mean over the classes that some image has."""
    values = average_precisions(scores, present)
    if np.isnan(values).all():
        raise DataError("no image has any label, so there is no average precision to take the mean of")
    return float(np.nanmean(values))


def presence(labels: NDArray[Any], *, num_classes: int) -> NDArray[np.bool_]:
    """Turn label lists (N, M), filled up with -1, into (N, K)."""
    if len(labels) and labels.max() >= num_classes:
        raise DataError(
            f"a label is {labels.max()}, outside the model's {num_classes} classes; "
            f"labels go from 0 to {num_classes - 1}"
        )
    present = np.zeros((len(labels), num_classes), dtype=bool)
    row, column = np.nonzero(labels != NO_LABEL)
    present[row, labels[row, column]] = True
    return present
