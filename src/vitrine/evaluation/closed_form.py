"""A linear classifier on frozen features without training: the best of three on examples that it has not seen.

Ridge regression (exact leave-one-out), the Gaussian discriminant and logistic regression (k folds) compete, each at
several strengths; the least log loss on left-out examples wins, and is then fitted to all examples. The left-out
scores also fit the temperature that turns scores into probabilities.

Shapes: N examples, R features, D features with the constant one, K classes, M rows to classify.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, TypedDict, Unpack

import torch
from torch import Tensor

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.closed_form_candidates import METHODS, TRAINED, Candidate, Examples, Method, is_right
from vitrine.evaluation.ridge import BIAS_FEATURE, Normalisation, with_constant
from vitrine.evaluation.temperature import fit_temperature

# Candidates for l2; the paper's few-shot protocol fixes it at 2^10.
L2_CHOICES = tuple(float(2**power) for power in range(-2, 17, 2))


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """A linear classifier with the evidence for it."""

    normalise: Normalisation
    weights: Tensor
    """(D, K) in float64, on normalised features with the constant one."""
    method: Method
    l2: float
    """Strength of the method: l2 of ridge regression, C of logistic regression, shrinkage of a discriminant."""
    sharpness: float
    """Factor from scores to logits: the reciprocal of the temperature."""
    left_out_accuracy: float
    """Accuracy on examples that were not fitted; with several labels, the share whose best class is one of them."""
    left_out_loss: float
    """Mean log loss of the left-out examples at the best temperature; the least one is chosen."""
    left_out_logits: Tensor
    """(N, K): the logits of each example by fits without it."""
    is_multi_label: bool = False

    def to(self, device: str) -> Self:
        """Return the classifier on another device."""
        normalise = Normalisation(mean=self.normalise.mean.to(device), std=self.normalise.std.to(device))
        return replace(
            self,
            normalise=normalise,
            weights=self.weights.to(device),
            left_out_logits=self.left_out_logits.to(device),
        )

    def scores(self, features: Tensor) -> Tensor:
        """Score the classes of rows (M, R): (M, K)."""
        return with_constant(self.normalise(features)) @ self.weights

    def logits(self, features: Tensor) -> Tensor:
        """Return the calibrated logits of rows (M, R): (M, K)."""
        return self.sharpness * self.scores(features)

    def probabilities(self, features: Tensor) -> Tensor:
        """Turn rows (M, R) into probabilities of the classes: (M, K)."""
        logits = self.logits(features)
        return logits.sigmoid() if self.is_multi_label else logits.softmax(dim=1)

    def head(self) -> tuple[Tensor, Tensor]:
        """Return weight (K, R) and bias (K,) of the linear layer with these logits, normalisation included."""
        line = self.sharpness * self.weights[:-1] / self.normalise.std[:, None]  # (R, K)
        bias = self.sharpness * BIAS_FEATURE * self.weights[-1] - self.normalise.mean @ line
        return line.T.contiguous(), bias


class Options(TypedDict, total=False):
    """How a closed form is fitted."""

    l2: float | Sequence[float] | None
    weights: Tensor | None
    is_balanced: bool
    methods: Sequence[Method]
    seed: int


def fit_closed_form(
    features: Tensor, labels: Tensor, *, num_classes: int, **options: Unpack[Options]
) -> ClosedForm:
    """Return the best linear classifier of features (N, R) and labels (N,) or flags (N, K)."""
    return fit_heads(features, labels, num_classes=num_classes, only_best=True, **options)[0]


def fit_heads(
    features: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    l2: float | Sequence[float] | None = None,
    weights: Tensor | None = None,
    is_balanced: bool = False,
    methods: Sequence[Method] = METHODS,
    seed: int = 0,
    only_best: bool = False,
) -> tuple[ClosedForm, ...]:
    """Return the best classifier in closed form and the best logistic regression, the better one first.

    They are fitted to features (N, R), labels (N,) or flags (N, K), and weights (N,), and compared by their log loss
    on left-out rows. With `only_best` only the better one is fitted to all examples and returned.

    With `l2` only ridge regression is fitted, at the best of the given strengths; a weight then has the effect of
    exactly as many copies of the example. The other methods weight examples in each fit, but copies could fall into
    different folds. `is_balanced` counts every class alike, however many examples it has. `seed` draws the folds.
    """
    if len(features) < 2 or len(features) != len(labels):
        raise DataError(
            f"at least two labelled examples are needed, got {len(features)} examples and {len(labels)} labels"
        )
    choices = L2_CHOICES if l2 is None else (l2,) if isinstance(l2, int | float) else tuple(l2)
    if not choices or not all(value > 0 for value in choices):
        raise ConfigError(f"must be above 0, got {l2}; omit it to have it chosen", option="l2")
    w = features.new_ones(len(features)).double() if weights is None else weights.double()  # (N,)
    counted = w > 0
    normalise = Normalisation.of(features[counted], weights=w[counted])
    examples = Examples(
        normalise(features[counted]), labels[counted], w[counted], num_classes=num_classes,
        is_balanced=is_balanced, seed=seed,
    )  # fmt: skip
    candidates = list(examples.candidates(("ridge",) if l2 is not None else methods, l2=choices))

    def finished(best: Candidate) -> ClosedForm:
        line, bias = best.line or examples.fitted(best)
        scores = examples.with_evidence(best, (line, bias)).left_out
        sharpness = 1 / fit_temperature(scores, examples.targets, weights=examples.weights)
        right = is_right(scores, examples.targets)
        solution = torch.cat([line, bias[None] / BIAS_FEATURE])  # (D, K)
        left_out = with_constant(normalise(features)) @ solution  # rows without weight were never fitted
        left_out[counted] = scores
        return ClosedForm(
            normalise=normalise,
            weights=solution,
            method=best.method,
            l2=best.strength,
            sharpness=sharpness,
            left_out_accuracy=float(examples.weights @ right / examples.weights.sum()),
            left_out_loss=examples.loss(best),
            left_out_logits=sharpness * left_out,
            is_multi_label=labels.ndim == 2,
        )

    groups = [[one for one in candidates if (one.method == TRAINED) == flag] for flag in (False, True)]
    bests = sorted((examples.best(group) for group in groups if group), key=examples.loss)
    return tuple(map(finished, bests[:1] if only_best else bests))
