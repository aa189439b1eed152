"""Labels that are likely wrong: images on which a model that is otherwise right disagrees with confidence.

After confident learning (arXiv:1911.00068): a class's threshold is the mean probability that the model gives
it on images so labelled. An image is suspect when another class reaches its own threshold and wins.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def likely_label_errors(probabilities: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return the suspect images, the most suspect first, from probabilities (N, K) and labels (N,)."""
    num_classes = probabilities.shape[1]
    counts = np.bincount(labels, minlength=num_classes)
    own = np.take_along_axis(probabilities, labels[:, None].astype(np.int64), axis=1)[:, 0]
    sums = np.bincount(labels, weights=own, minlength=num_classes)
    # No image of a class: nothing says what confidence means for it, so it never makes another suspect.
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    best = probabilities.argmax(axis=1)
    best_probability = probabilities.max(axis=1)
    is_suspect = (best != labels) & (best_probability >= thresholds[best])
    suspects = np.flatnonzero(is_suspect)
    return suspects[np.argsort(own[suspects] - best_probability[suspects], kind="stable")]
