"""Few-shot accuracy of a frozen representation, by the paper's protocol (section 4.1).

For each seed and class, in class order, a permutation is drawn; its first k examples are the k shots. So a
seed's 1-shot examples are among its 5-shot examples. The classifier is regularised least squares in closed
form (`vitrine.evaluation.ridge`), or one of the probes.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.probes import LOGISTIC_L2, NEIGHBOURS, logistic_regression, nearest_neighbours
from vitrine.evaluation.ridge import DEFAULT_L2, RidgeClassifiers
from vitrine.runtime.progress import track
from vitrine.spelling import counted

Array: TypeAlias = Tensor | NDArray[Any]
Probe = Literal["ridge", "knn", "logistic"]
SHOTS = (1, 5, 10, 25)


@dataclass(frozen=True, kw_only=True)
class FewShotScore:
    """Accuracy at one number of shots and one l2 (None for nearest neighbours), for each seed."""

    shots: int
    l2: float | None
    accuracies: tuple[float, ...]
    mean: float
    spread: float | None
    """Standard deviation over the seeds (n - 1); None where there is one seed."""


@dataclass(frozen=True, kw_only=True)
class FewShotResult:
    """Every score, in order of shots and of l2."""

    probe: Probe
    seeds: int
    num_classes: int
    num_train: int
    num_test: int
    scores: tuple[FewShotScore, ...]

    def score(self, shots: int, *, l2: float | None = None) -> FewShotScore:
        """Find the score at `shots`, and at `l2` where there were several."""
        for score in self.scores:
            if score.shots == shots and l2 in (None, score.l2):
                return score
        known = ", ".join(sorted({str(score.shots) for score in self.scores}, key=int))
        raise ConfigError(f"there is no score at {shots} shots and l2 {l2}; shots are {known}")

    def __str__(self) -> str:
        several = len({score.l2 for score in self.scores}) > 1
        lines = [
            f"{self.probe} on {self.num_classes} classes, {self.num_test:,} test examples, "
            f"{counted(self.seeds, 'seed')}"
        ]
        for score in self.scores:
            spread = "" if score.spread is None else f" +- {100 * score.spread:.2f}"
            l2 = f"  l2 {score.l2:g}" if several else ""
            lines.append(f"{score.shots:>4}-shot{l2}: {100 * score.mean:6.2f} %{spread}")
        return "\n".join(lines)


def fewshot_accuracy(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    test_labels: Array,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: int = 3,
    l2: float | Sequence[float] | None = None,
    probe: Probe = "ridge",
    neighbours: int = NEIGHBOURS,
    class_names: Sequence[str] | None = None,
) -> FewShotResult:
    """Measure top-1 accuracy from a few examples a class on features (N, D) and labels (N,), 0 to K - 1.

    `l2` is 1024 for ridge and 1 for logistic regression unless given; several share one decomposition.
    """
    if probe not in get_args(Probe):
        raise ConfigError(f"probe must be one of {', '.join(get_args(Probe))}, got {probe!r}")
    if seeds < 1:
        raise ConfigError(f"seeds must be 1 or more, got {seeds}; the paper's protocol takes 3")
    values = _l2_values(l2, probe)
    train, train_targets = _checked(train_features, train_labels, which="train")
    test, test_targets = _checked(test_features, test_labels, which="test")
    if train.shape[1] != test.shape[1]:
        raise DataError(
            f"train features have {train.shape[1]} columns and test features {test.shape[1]}; "
            "they must come from the same model"
        )
    num_classes = _count_classes(train_targets, test_targets, class_names)
    require_enough(np.bincount(train_targets.numpy(), minlength=num_classes), shots, class_names=class_names)
    found: dict[tuple[int, float | None], list[float]] = {
        (k, v): [] for k in sorted(set(shots)) for v in values
    }
    runs = [(seed, k) for seed in range(seeds) for k in sorted(set(shots))]
    for seed, k in track(runs, f"Few-shot {probe}"):
        rows = draw_support(train_targets.numpy(), shots=k, seed=seed, num_classes=num_classes)
        predictions = _predict(
            train[rows], train_targets[rows], test, probe=probe, num_classes=num_classes, values=values,
            neighbours=neighbours,
        )  # fmt: skip
        for value, classes in zip(values, predictions, strict=True):
            found[k, value].append(float((classes == test_targets).double().mean()))
    return FewShotResult(
        probe=probe,
        seeds=seeds,
        num_classes=num_classes,
        num_train=len(train),
        num_test=len(test),
        scores=tuple(_score(k, value, accuracies) for (k, value), accuracies in found.items()),
    )


def draw_support(labels: NDArray[Any], *, shots: int, seed: int, num_classes: int) -> NDArray[np.int64]:
    """Choose the support rows: per class, in class order, the first `shots` of a permutation."""
    generator = np.random.default_rng(seed)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=num_classes))
    starts = np.concatenate([[0], ends[:-1]])
    chosen = [generator.permutation(order[a:b])[:shots] for a, b in zip(starts, ends, strict=True)]
    return np.concatenate(chosen).astype(np.int64)


def parse_shots(text: str) -> tuple[int, ...]:
    """Read shots as written on the command line: `1,5,10,25`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"shots must be whole numbers with commas between, got {text!r}; try 1,5,10,25")
    return tuple(int(part) for part in parts)


def require_enough(
    counts: NDArray[Any], shots: Sequence[int], *, class_names: Sequence[str] | None = None
) -> None:
    """Refuse shots that a class has too few examples for; `counts` is how many each class has."""
    if min(shots, default=0) < 1:
        raise ConfigError(
            "shots must be at least one number, each 1 or more; the paper's are 1, 5, 10 and 25"
        )
    short = np.flatnonzero(counts < max(shots)).tolist()
    if not short:
        return
    first = min(short, key=lambda index: int(counts[index]))
    name = class_names[first] if class_names is not None else f"class {first}"
    have = int(counts[first])
    others = f", and {len(short) - 1} more classes have too few" if len(short) > 1 else ""
    if have == 0:
        raise DataError(
            f"{name} has no training examples at all{others}; add some, or leave the class out of both sets"
        )
    raise DataError(
        f"{name} has {counted(have, 'training example')}, fewer than {max(shots)} shots{others}; "
        f"add examples or ask for at most {counted(have, 'shot')}"
    )


def _predict(
    support: Tensor,
    labels: Tensor,
    test: Tensor,
    *,
    probe: Probe,
    num_classes: int,
    values: list[float | None],
    neighbours: int,
) -> list[Tensor]:
    if probe == "knn":
        return [nearest_neighbours(support, labels, test, num_classes=num_classes, neighbours=neighbours)]
    numbers = [value for value in values if value is not None]
    if probe == "ridge":
        return list(RidgeClassifiers(support, labels, num_classes=num_classes, l2=numbers).predict(test))
    return [logistic_regression(support, labels, test, num_classes=num_classes, l2=l2) for l2 in numbers]


def _l2_values(l2: float | Sequence[float] | None, probe: Probe) -> list[float | None]:
    if probe == "knn":
        if l2 is not None:
            raise ConfigError(
                f"nearest neighbours have no l2, got {l2}; leave it out or choose another probe"
            )
        return [None]
    if l2 is None:
        return [DEFAULT_L2 if probe == "ridge" else LOGISTIC_L2]
    values = [float(l2)] if isinstance(l2, (int, float)) else [float(value) for value in l2]
    if not values or not all(value > 0 and math.isfinite(value) for value in values):
        raise ConfigError(f"l2 must be numbers above 0, got {l2}; the paper's protocol takes 1024")
    return list(dict.fromkeys(values))


def _checked(features: Array, labels: Array, *, which: str) -> tuple[Tensor, Tensor]:
    """Return features (N, D) as given and labels (N,) int64 on the CPU, or say what is wrong with them."""
    rows, targets = torch.as_tensor(features).detach().cpu(), torch.as_tensor(labels).detach().cpu()
    if rows.ndim != 2 or targets.ndim != 1 or len(rows) != len(targets):
        raise DataError(
            f"{which} features must be (N, D) and labels (N,), got {tuple(rows.shape)} and {tuple(targets.shape)}"
        )
    if len(rows) == 0:
        raise DataError(f"the {which} set has no examples")
    if targets.is_floating_point() or targets.is_complex():
        raise DataError(f"{which} labels must be whole numbers from 0, got {targets.dtype}")
    if int(targets.min()) < 0:
        raise DataError(f"{which} labels must be whole numbers from 0, got {int(targets.min())}")
    if not torch.isfinite(rows.sum(dim=0, dtype=torch.float64)).all():
        raise DataError(f"{which} features hold values that are not finite; the model's output is broken")
    return rows, targets.long()


def _count_classes(train: Tensor, test: Tensor, class_names: Sequence[str] | None) -> int:
    largest = int(max(train.max(), test.max()))
    if class_names is None:
        return largest + 1
    if largest >= len(class_names):
        raise DataError(
            f"a label is {largest}, outside the {len(class_names)} classes; "
            f"labels go from 0 to {len(class_names) - 1}"
        )
    return len(class_names)


def _score(shots: int, l2: float | None, accuracies: list[float]) -> FewShotScore:
    return FewShotScore(
        shots=shots,
        l2=l2,
        accuracies=tuple(accuracies),
        mean=statistics.fmean(accuracies),
        spread=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
    )
