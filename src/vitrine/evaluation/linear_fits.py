"""Linear classifiers on standardised features: ridge, Gaussian discriminant and logistic regression.

Each function returns weights (R, K) and bias (K,) for one fit. Ridge regression also evaluates itself: leaving an
example out needs no second fit. With the hat matrix H its prediction is (y' - h y) / (1 - h), h its own entry on the
diagonal. A weight of w counts an example w times.

Shapes: N examples, R features, D features with the constant one, K classes.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluation.ridge import BIAS_FEATURE, with_constant

Line = tuple[Tensor, Tensor]
"""Weights (R, K) and bias (K,) on standardised features, in float64."""
# An example that alone decides its own prediction (h = 1) is no evidence when it is left out.
_LEAST_REST = 1e-6
# Iterations of L-BFGS, which starts from the solution for a stronger penalty, and its memory.
MOST_ITERATIONS, HISTORY = 100, 10


def ridge_lines(
    features: Tensor, targets: Tensor, weights: Tensor, *, l2: Sequence[float]
) -> Iterator[tuple[Line, Tensor]]:
    """Yield per l2 the ridge regression to targets (N, K) of -1 and 1, and its leave-one-out scores (N, K)."""
    root = weights.sqrt()[:, None]  # (N, 1)
    X = root * with_constant(features)  # (N, D)
    # X = U S V^t, so H = U S^2 / (S^2 + l) U^t for every l, from one decomposition.
    U, S, Vt = torch.linalg.svd(X, full_matrices=False)  # (N, M), (M,), (M, D)
    seen = U.T @ (root * targets)  # (M, K)
    for value in l2:
        shrunk = S.square() / (S.square() + value)  # (M,)
        fitted = U @ (shrunk[:, None] * seen) / root  # (N, K)
        own = (U.square() @ shrunk)[:, None] / weights[:, None].clamp_min(1)  # (N, 1), of one example
        left_out = (fitted - own * targets) / (1 - own).clamp_min(_LEAST_REST)
        solution = Vt.T @ ((S / (S.square() + value))[:, None] * seen)  # (D, K)
        yield (solution[:-1], BIAS_FEATURE * solution[-1]), left_out


def discriminant_lines(
    features: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    num_classes: int,
    shrinkage: Sequence[float],
    has_prior: bool = True,
) -> Iterator[Line]:
    """Yield per shrinkage the classifier of Gaussians with one covariance, moved that far towards a sphere.

    Without a prior all classes are equally likely, however many examples they have.
    """
    members = F.one_hot(labels, num_classes).double() * weights[:, None]  # (N, K)
    counts = members.sum(dim=0)  # (K,)
    # A class without examples has the mean of all, which is 0, and a very low prior.
    means = members.T @ features / counts.clamp_min(1e-9)[:, None]  # (K, R)
    rest = weights.sqrt()[:, None] * (features - means[labels])
    spread = rest.T @ rest / max(float(weights.sum()) - num_classes, 1.0)  # (R, R)
    values, vectors = torch.linalg.eigh(spread)
    turned = means @ vectors  # (K, R)
    prior = (counts.clamp_min(0.5) / counts.sum()).log()
    if not has_prior:
        prior = torch.where(counts > 0, 0.0, prior)
    for share in shrinkage:
        scales = (1 - share) * values.clamp_min(0) + share * values.mean().clamp_min(1e-9)  # (R,)
        line = vectors @ (turned / scales).T  # (R, K)
        yield line, prior - (means.T * line).sum(dim=0) / 2


def logistic_line(
    features: Tensor,
    targets: Tensor,
    weights: Tensor,
    *,
    strength: float,
    start: Line,
    offsets: Tensor | None = None,
) -> Line:
    """Fit logistic regression by L-BFGS, to labels (N,) by a softmax or flags (N, K) by sigmoids.

    The summed loss is minimised plus |W|^2 / (2 strength): `strength` is scikit-learn's C. `offsets` (K,) are added
    to the logits in the fit only: the logarithm of the classes' shares gives a fit for classes that are equally
    frequent (logit adjustment, arXiv:2007.07314).
    """
    X, shares = features.float(), (weights / weights.sum()).float()
    line, bias = (part.float().clone().requires_grad_() for part in start)
    shift = 0.0 if offsets is None else offsets.float()
    penalty = 1 / (2 * strength * float(weights.sum()))
    optimizer = torch.optim.LBFGS(
        [line, bias], max_iter=MOST_ITERATIONS, history_size=HISTORY, line_search_fn="strong_wolfe",
        tolerance_grad=1e-5, tolerance_change=1e-7,
    )  # fmt: skip

    def closure() -> float:
        optimizer.zero_grad()
        logits = X @ line + bias + shift
        if targets.ndim == 2:
            each = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").sum(dim=1)
        else:
            each = F.cross_entropy(logits, targets, reduction="none")
        loss = shares @ each + penalty * line.square().sum()
        torch.autograd.backward(loss)
        return float(loss.detach())

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return line.detach().double(), bias.detach().double()
