"""Two other readers of a frozen representation: nearest neighbours and logistic regression.

Shapes: N support examples, D features, K classes, M test examples.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.errors import ConfigError
from vitrine.evaluation.ridge import Normalisation

# Of instance discrimination (arXiv:1805.01978), section 3.4: neighbours vote with exp(cosine / temperature).
NEIGHBOURS = 20
TEMPERATURE = 0.07
LOGISTIC_L2 = 1.0
MAX_ITERATIONS = 1000
# Of the mean loss: a tenth of it takes four times the steps and moves no prediction.
GRADIENT_TOLERANCE = 1e-7
# Test rows compared at a time are chosen so that one block of similarities stays at 64 MB.
_BLOCK_NUMBERS = 8_000_000


def nearest_neighbours(
    support: Tensor, labels: Tensor, test: Tensor, *, num_classes: int, neighbours: int = NEIGHBOURS
) -> Tensor:
    """Classify test (M, D) by a weighted vote of the nearest support rows by cosine: (M,)."""
    if neighbours < 1:
        raise ConfigError(f"neighbours must be 1 or more, got {neighbours}; 20 is usual")
    known = F.normalize(support.double(), dim=1)
    count = min(neighbours, len(support))
    found = []
    for rows in torch.split(test, max(1, _BLOCK_NUMBERS // len(support))):
        similarity, index = (F.normalize(rows.double(), dim=1) @ known.T).topk(count, dim=1)
        # Subtracting the largest changes no order and keeps exp away from overflow.
        votes = torch.exp((similarity - similarity[:, :1]) / TEMPERATURE)
        tally = torch.zeros(len(rows), num_classes, dtype=torch.float64)
        found.append(tally.scatter_add_(1, labels[index], votes).argmax(dim=1))
    return torch.cat(found)


def logistic_regression(
    support: Tensor, labels: Tensor, test: Tensor, *, num_classes: int, l2: float = LOGISTIC_L2
) -> Tensor:
    """Classify test (M, D) by multinomial logistic regression on normalised features: (M,)."""
    normalise = Normalisation.of(support)
    weight, bias = fit_logistic(normalise(support), labels, num_classes=num_classes, l2=l2)
    chunks = torch.split(test, max(1, _BLOCK_NUMBERS // num_classes))
    return torch.cat([(normalise(rows) @ weight + bias).argmax(dim=1) for rows in chunks])


def fit_logistic(
    features: Tensor, labels: Tensor, *, num_classes: int, l2: float = LOGISTIC_L2
) -> tuple[Tensor, Tensor]:
    """Minimise summed cross-entropy + l2 / 2 |W|^2 by L-BFGS: weight (D, K), bias (K,), not regularised."""
    if not l2 > 0:
        raise ConfigError(f"l2 must be above 0, got {l2:g}; 1 is usual for logistic regression")
    X = features.double()
    weight = torch.zeros(X.shape[1], num_classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_ITERATIONS,
        tolerance_grad=GRADIENT_TOLERANCE,
        tolerance_change=1e-15,  # near rounding: the gradient decides
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        # Divided by N so that the tolerances mean the same for small and large sets.
        loss = F.cross_entropy(X @ weight + bias, labels) + l2 / (2 * len(X)) * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()
