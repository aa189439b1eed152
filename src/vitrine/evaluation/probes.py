"""Classifiers on frozen features, by name: the paper's ridge regression, nearest neighbours, logistic regression.

A new one is a file with a function and one line: `register_probe(Probe(name="centroid", predict=...))`; then
`vitrine.fewshot(..., probe="centroid")` uses it.

Shapes: N support examples, D features, K classes, M test examples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.errors import ConfigError
from vitrine.evaluation.ridge import DEFAULT_L2, Normalisation, RidgeClassifiers
from vitrine.spelling import nearest

# From instance discrimination (arXiv:1805.01978), section 3.4: neighbours vote with exp(cosine / temperature).
NEIGHBOURS = 20
TEMPERATURE = 0.07
LOGISTIC_L2 = 1.0
MAX_ITERATIONS = 1000
# On the mean loss; a tenth of it takes four times the steps and changes no prediction.
GRADIENT_TOLERANCE = 1e-7
# Test rows per block, so that one block of similarities stays at 64 MB.
_BLOCK_NUMBERS = 8_000_000


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Settings of a probe, beside its examples."""

    num_classes: int
    l2: tuple[float, ...] = ()
    """Strengths of regularisation; empty for a probe without any."""
    neighbours: int = NEIGHBOURS


Predict = Callable[[Tensor, Tensor, Tensor, ProbeOptions], list[Tensor]]
"""From support (N, D), labels (N,) and test (M, D) to the classes (M,) of test: one tensor per l2, or one."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A classifier on frozen features."""

    name: str
    predict: Predict
    default_l2: float | None = None
    """None for a probe without l2."""


PROBES: dict[str, Probe] = {}


def register_probe(probe: Probe) -> Probe:
    """Make a probe available by its name; a name in use is refused."""
    if probe.name in PROBES:
        raise ConfigError(f"the probe name {probe.name!r} is in use; choose another name")
    PROBES[probe.name] = probe
    return probe


def find_probe(name: str) -> Probe:
    """Return the probe called `name`; a misspelt name is refused."""
    if name not in PROBES:
        raise ConfigError(
            f"must be one of {', '.join(PROBES)}, got {name!r}; nearest: {nearest(name, PROBES)[0]}",
            option="probe",
            suggestions=nearest(name, PROBES),
        )
    return PROBES[name]


def nearest_neighbours(
    support: Tensor, labels: Tensor, test: Tensor, *, num_classes: int, neighbours: int = NEIGHBOURS
) -> Tensor:
    """Classify test (M, D) by a weighted vote of the nearest support rows by cosine: (M,)."""
    if neighbours < 1:
        raise ConfigError(f"must be at least 1, got {neighbours}; 20 is usual", option="neighbours")
    known = F.normalize(support.double(), dim=1)
    count = min(neighbours, len(support))
    classes = []
    for rows in torch.split(test, max(1, _BLOCK_NUMBERS // len(support))):
        similarity, index = (F.normalize(rows.double(), dim=1) @ known.T).topk(count, dim=1)
        # Subtracting the largest changes no order and keeps exp away from overflow.
        votes = torch.exp((similarity - similarity[:, :1]) / TEMPERATURE)
        tally = torch.zeros(len(rows), num_classes, dtype=torch.float64)
        classes.append(tally.scatter_add_(1, labels[index], votes).argmax(dim=1))
    return torch.cat(classes)


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
        raise ConfigError(f"must be above 0, got {l2:g}; 1 is usual for logistic regression", option="l2")
    X = features.double()
    weight = torch.zeros(X.shape[1], num_classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_ITERATIONS,
        tolerance_grad=GRADIENT_TOLERANCE,
        tolerance_change=1e-15,  # near rounding, so that the gradient decides
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


register_probe(
    Probe(
        name="ridge",
        default_l2=DEFAULT_L2,
        predict=lambda support, labels, test, options: list(
            RidgeClassifiers(support, labels, num_classes=options.num_classes, l2=options.l2).predict(test)
        ),
    )
)
register_probe(
    Probe(
        name="knn",
        predict=lambda support, labels, test, options: [
            nearest_neighbours(
                support, labels, test, num_classes=options.num_classes, neighbours=options.neighbours
            )
        ],
    )
)
register_probe(
    Probe(
        name="logistic",
        default_l2=LOGISTIC_L2,
        predict=lambda support, labels, test, options: [
            logistic_regression(support, labels, test, num_classes=options.num_classes, l2=l2)
            for l2 in options.l2
        ],
    )
)
