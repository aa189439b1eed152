"""The candidates for a closed form: three kinds of linear fits at several strengths, compared on left-out examples.

Shapes: N examples, R features, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluation.linear_fits import Line, discriminant_lines, logistic_line, ridge_lines
from vitrine.evaluation.temperature import fit_temperature, log_losses

Method = Literal["ridge", "discriminant", "logistic"]
TRAINED: Method = "logistic"
METHODS: tuple[Method, ...] = ("ridge", "discriminant", "logistic")
# Shrinkage of the covariance towards a sphere; with 5 to 20 photos per class, 0.4 to 0.8 win (docs/experiments.md).
SHRINKAGES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
# scikit-learn's C, from the strongest penalty to the weakest.
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# Folds by the number of examples: few examples cannot spare a fifth of them.
FEW = 500
FOLDS_OF_FEW, FOLDS = 10, 5
# Folds for the evidence of the chosen fit where classes have fewer examples than this on average: without a fifth of
# 20 photos per class, a fit is right less often than the one that is kept (docs/experiments.md, "Closed form").
FOLDS_OF_EVIDENCE, FEW_PER_CLASS = 20, 50


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One method at one strength, with its scores (N, K) of left-out examples."""

    method: Method
    strength: float
    left_out: Tensor
    line: Line | None = None
    """The fit to all examples, if it is known already."""


class Examples:
    """Normalised features (N, R), their targets and weights, divided into folds."""

    def __init__(
        self,
        features: Tensor,
        targets: Tensor,
        weights: Tensor,
        *,
        num_classes: int,
        is_balanced: bool,
        seed: int,
    ) -> None:
        self.features, self.targets, self.weights = features, targets.long(), weights
        self.num_classes, self.is_multi_label = num_classes, targets.ndim == 2
        self.is_balanced, self.seed = is_balanced and not self.is_multi_label, seed
        self.folds = self.divided()

    def divided(self, number: int | None = None) -> list[tuple[Tensor, Tensor]]:
        """Divide the examples into folds; return the rest and the fold, as indices on their device."""
        device = self.features.device
        return [
            (torch.from_numpy(rest).to(device), torch.from_numpy(fold).to(device))
            for rest, fold in folds_of(self.targets, number=number, seed=self.seed)
        ]

    def candidates(self, methods: Sequence[Method], *, l2: Sequence[float]) -> Iterator[Candidate]:
        """Yield every method at every strength."""
        if "ridge" in methods:
            flags = self.targets if self.is_multi_label else F.one_hot(self.targets, self.num_classes)
            lines = ridge_lines(self.features, 2 * flags.double() - 1, self.weights, l2=l2)
            for value, (line, left_out) in zip(l2, lines, strict=True):
                yield Candidate(method="ridge", strength=value, left_out=left_out, line=line)
        if "discriminant" in methods and not self.is_multi_label:
            parts = [self.discriminants(rest, SHRINKAGES) for rest, _ in self.folds]
            for number, share in enumerate(SHRINKAGES):
                yield self.gathered("discriminant", share, [lines[number] for lines in parts], self.folds)
        if "logistic" in methods:
            yield from self.logistic_candidates()

    def logistic_candidates(self) -> Iterator[Candidate]:
        """Yield weaker and weaker penalties, until one is worse than the last."""
        lines: list[Line] | list[None] = [None] * len(self.folds)
        last = float("inf")
        for strength in STRENGTHS:
            lines = [
                self.logistic(rest, strength, start=line)
                for (rest, _), line in zip(self.folds, lines, strict=True)
            ]
            candidate = self.gathered("logistic", strength, lines, self.folds)
            yield candidate
            loss = self.loss(candidate)
            if loss > last:
                return
            last = loss

    def gathered(
        self, method: Method, strength: float, lines: Sequence[Line], folds: Sequence[tuple[Tensor, Tensor]]
    ) -> Candidate:
        """Collect the scores of every fold by the line that was fitted without it."""
        left_out = self.features.new_zeros(len(self.features), self.num_classes)
        for (_, fold), (line, bias) in zip(folds, lines, strict=True):
            left_out[fold] = self.features[fold] @ line + bias
        return Candidate(method=method, strength=strength, left_out=left_out)

    def discriminants(self, rows: Tensor, shrinkages: Sequence[float]) -> list[Line]:
        """Fit Gaussian discriminants to some of the examples."""
        return list(
            discriminant_lines(
                self.features[rows], self.targets[rows], self.weights[rows], num_classes=self.num_classes,
                shrinkage=shrinkages, has_prior=not self.is_balanced,
            )
        )  # fmt: skip

    def logistic(self, rows: Tensor, strength: float, *, start: Line | None) -> Line:
        """Fit logistic regression to some of the examples."""
        if start is None:
            start = (
                self.features.new_zeros(self.features.shape[1], self.num_classes),
                self.features.new_zeros(self.num_classes),
            )
        return logistic_line(
            self.features[rows], self.targets[rows], self.weights[rows], strength=strength, start=start,
            offsets=self.shares(rows).log() if self.is_balanced else None,
        )  # fmt: skip

    def shares(self, rows: Tensor) -> Tensor:
        """Return the share of each class among some examples (K,), as if every class had half an example more."""
        counts = (
            torch.bincount(self.targets[rows], weights=self.weights[rows], minlength=self.num_classes) + 0.5
        )
        return counts / counts.sum()

    def fitted(self, candidate: Candidate) -> Line:
        """Fit a candidate to all examples."""
        everything = torch.arange(len(self.features), device=self.features.device)
        if candidate.method == "discriminant":
            return self.discriminants(everything, [candidate.strength])[0]
        return self.logistic(everything, candidate.strength, start=None)

    def with_evidence(self, candidate: Candidate, line: Line) -> Candidate:
        """Score the left-out examples of a candidate, whose fit to all is `line`, by fits to almost all examples.

        Candidates are compared by few folds, which is fast; with few examples per class, their scores are those of a
        classifier that is worse and less sure than the one that is kept.
        """
        is_exact = candidate.line is not None
        if is_exact or self.is_multi_label or len(self.features) >= FEW_PER_CLASS * self.num_classes:
            return candidate
        folds = self.divided(FOLDS_OF_EVIDENCE)
        if len(folds) == len(self.folds):  # the same folds
            return candidate
        if candidate.method == "discriminant":
            lines = [self.discriminants(rest, [candidate.strength])[0] for rest, _ in folds]
        else:
            lines = [self.logistic(rest, candidate.strength, start=line) for rest, _ in folds]
        return self.gathered(candidate.method, candidate.strength, lines, folds)

    def best(self, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate with the least log loss on left-out examples, each at its own temperature."""
        return min(candidates, key=self.loss)

    def loss(self, candidate: Candidate) -> float:
        """Return the log loss of left-out examples at the best temperature; balanced, every class counts alike."""
        weights = self.weights
        if self.is_balanced:
            weights = (
                weights
                / self.shares(torch.arange(len(weights), device=weights.device))[self.targets]
                / self.num_classes
            )
        temperature = fit_temperature(candidate.left_out, self.targets, weights=weights)
        losses = log_losses(candidate.left_out / temperature, self.targets, num_images=float(weights.sum()))
        return float(weights @ losses / weights.sum())


def folds_of(
    targets: Tensor, *, seed: int, number: int | None = None
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Divide examples into folds, each with its share of every class; return the rest and the fold, as indices.

    There are no more folds than examples per class on average, so that a fold has one of every class. Otherwise the
    class of a left-out example would have fewer examples left than the others, and its score would be too low.
    """
    count = len(targets)
    keys = (targets.argmax(dim=1) if targets.ndim == 2 else targets).cpu()
    per_class = count // max(len(np.unique(keys.numpy())), 1)
    number = min(number or (FOLDS_OF_FEW if count < FEW else FOLDS), max(per_class, 2), count)
    order = np.random.default_rng(seed).permutation(count)
    order = order[np.argsort(keys.numpy()[order], kind="stable")]  # class by class, shuffled inside
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count) % number
    return [(np.flatnonzero(place != fold), np.flatnonzero(place == fold)) for fold in range(number)]


def is_right(scores: Tensor, targets: Tensor) -> Tensor:
    """Return 1 where the best class is the label, or one of several: (N,) float64."""
    best = scores.argmax(dim=1)
    if targets.ndim == 1:
        return (best == targets).double()
    return targets.gather(1, best[:, None])[:, 0].double()
