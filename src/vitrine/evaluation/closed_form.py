"""A linear classifier on frozen features without training: ridge regression that evaluates itself by leaving one out.

Leaving an example out of ridge regression needs no second fit: with the hat matrix H its prediction is
(y' - h y) / (1 - h), h its own entry on the diagonal. That chooses l2, and the temperature that turns scores into
probabilities, on examples that the scores have not seen. A weight counts an example as often: leaving out one of them
leaves the others in.

Shapes: N examples, D features with the constant one, K classes, M rows to classify.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.ridge import Normalisation, with_constant

# Candidates for l2; the paper's few-shot protocol fixes it at 2^10.
L2_CHOICES = tuple(float(2**power) for power in range(-2, 17, 2))
# Scores are near -1 and 1, so larger factors do not make a class more certain.
TEMPERATURES = tuple(2.0 ** (power / 2) for power in range(-2, 13))
# An example that alone decides its own prediction (h = 1) is no evidence when it is left out.
_LEAST_REST = 1e-6


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """Weights (D, K) in float64, the chosen l2 and sharpness, and the leave-one-out accuracy."""

    normalise: Normalisation
    weights: Tensor
    l2: float
    sharpness: float
    left_out_accuracy: float

    def scores(self, features: Tensor) -> Tensor:
        """Score the classes of rows (M, D - 1): (M, K), near 1 for the predicted class and -1 for others."""
        return with_constant(self.normalise(features)) @ self.weights

    def probabilities(self, features: Tensor) -> Tensor:
        """Turn rows (M, D - 1) into probabilities of the classes: (M, K)."""
        return (self.sharpness * self.scores(features)).softmax(dim=1)


def fit_closed_form(
    features: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    l2: float | Sequence[float] | None = None,
    weights: Tensor | None = None,
) -> ClosedForm:
    """Fit features (N, D - 1), labels and weights (N,); of several l2 choose the least log loss on left-out rows."""
    if len(features) < 2 or len(features) != len(labels):
        raise DataError(
            f"at least two labelled examples are needed, got {len(features)} examples and {len(labels)} labels"
        )
    choices = L2_CHOICES if l2 is None else (l2,) if isinstance(l2, int | float) else tuple(l2)
    if not choices or not all(value > 0 for value in choices):
        raise ConfigError(f"must be above 0, got {l2}; omit it to have it chosen", option="l2")
    w = torch.ones(len(features)).double() if weights is None else weights.double()  # (N,)
    features, labels, w = features[w > 0], labels[w > 0], w[w > 0]
    normalise = Normalisation.of(features, weights=w)
    root = w.sqrt()[:, None]  # (N, 1)
    X = root * with_constant(normalise(features))  # (N, D)
    Y = 2 * F.one_hot(labels, num_classes).double() - 1  # (N, K)
    # X = U S V^t, so H = U S^2 / (S^2 + l) U^t for every l, from one decomposition.
    U, S, Vt = torch.linalg.svd(X, full_matrices=False)  # (N, R), (R,), (R, D)
    seen = U.T @ (root * Y)  # (R, K)
    best: tuple[float, float, float, float] | None = None
    for value in choices:
        shrunk = S.square() / (S.square() + value)  # (R,)
        fitted = U @ (shrunk[:, None] * seen) / root  # (N, K)
        own = (U.square() @ shrunk)[:, None] / w[:, None].clamp_min(1)  # (N, 1), of one example
        left_out = (fitted - own * Y) / (1 - own).clamp_min(_LEAST_REST)
        accuracy = (w @ (left_out.argmax(dim=1) == labels).double() / w.sum()).item()
        loss, sharpness = min((_log_loss(t * left_out, labels, w), t) for t in TEMPERATURES)
        if best is None or loss < best[0]:
            best = (loss, sharpness, value, accuracy)
    assert best is not None
    _, sharpness, chosen, accuracy = best
    solution = Vt.T @ ((S / (S.square() + chosen))[:, None] * seen)  # (D, K)
    return ClosedForm(
        normalise=normalise, weights=solution, l2=chosen, sharpness=sharpness, left_out_accuracy=accuracy
    )


def _log_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    return (weights @ F.cross_entropy(logits, labels, reduction="none") / weights.sum()).item()
