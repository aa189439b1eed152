"""Few-shot accuracy of a frozen representation, by the paper's protocol (section 4.1).

For each seed and class, in class order, a permutation is drawn; its first k examples are the k shots, so a seed's
1-shot examples are among its 5-shot examples. The classifier is regularised least squares in closed form
(`vitrine.evaluation.ridge`) or another probe (`vitrine.evaluation.probes`).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.sources.labels import match_classes, require_classes
from vitrine.data.sources.opening import list_splits, open_splits
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.probes import NEIGHBOURS, Probe, ProbeOptions, find_probe
from vitrine.runtime.progress import notice, track
from vitrine.spelling import counted, printable, some_of

Array: TypeAlias = Tensor | NDArray[Any]
SHOTS = (1, 5, 10, 25)


@dataclass(frozen=True, kw_only=True)
class FewShotScore:
    """Accuracy at one number of shots and one l2 (None for a probe without l2), per seed."""

    shots: int
    l2: float | None
    accuracies: tuple[float, ...]
    mean: float
    spread: float | None
    """Standard deviation over the seeds (n - 1); None with one seed."""


@dataclass(frozen=True, kw_only=True)
class FewShotResult:
    """Every score, in order of shots and of l2."""

    probe: str
    seeds: int
    num_classes: int
    num_train: int
    num_test: int
    scores: tuple[FewShotScore, ...]

    def score(self, shots: int, *, l2: float | None = None) -> FewShotScore:
        """Return the score at `shots`, and at `l2` if there are several."""
        for score in self.scores:
            if score.shots == shots and l2 in (None, score.l2):
                return score
        known = ", ".join(sorted({str(score.shots) for score in self.scores}, key=int))
        raise ConfigError(f"no score at {shots} shots and l2 {l2}; shots are {known}")


def fewshot_accuracy(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    test_labels: Array,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: int = 3,
    l2: float | Sequence[float] | None = None,
    probe: str = "ridge",
    neighbours: int = NEIGHBOURS,
    class_names: Sequence[str] | None = None,
) -> FewShotResult:
    """Measure top-1 accuracy from a few examples per class on features (N, D) and labels (N,), 0 to K - 1.

    `l2` is by default 1024 for ridge and 1 for logistic regression; several share one decomposition.
    """
    classifier = find_probe(probe)
    if seeds < 1:
        raise ConfigError(f"must be at least 1, got {seeds}; the paper's protocol uses 3", option="seeds")
    values = _l2_values(l2, classifier)
    train, train_targets = _checked(train_features, train_labels, which="train")
    test, test_targets = _checked(test_features, test_labels, which="test")
    if train.shape[1] != test.shape[1]:
        raise DataError(
            f"train features have {train.shape[1]} columns and test features {test.shape[1]}; "
            "they must come from the same model"
        )
    num_classes = _count_classes(train_targets, test_targets, class_names)
    require_enough(np.bincount(train_targets.numpy(), minlength=num_classes), shots, class_names=class_names)
    options = ProbeOptions(num_classes=num_classes, l2=values, neighbours=neighbours)
    keys: tuple[float | None, ...] = values or (None,)
    accuracies: dict[tuple[int, float | None], list[float]] = {
        (k, v): [] for k in sorted(set(shots)) for v in keys
    }
    # A draw that takes every example is the same set with every seed: one is enough, and it has no spread.
    most = int(np.bincount(train_targets.numpy(), minlength=num_classes).max())
    runs = [(seed, k) for seed in range(seeds) for k in sorted(set(shots)) if seed == 0 or k < most]
    for seed, k in track(runs, f"Few-shot {probe}"):
        rows = draw_support(train_targets.numpy(), shots=k, seed=seed, num_classes=num_classes)
        predictions = classifier.predict(train[rows], train_targets[rows], test, options)
        for value, classes in zip(keys, predictions, strict=True):
            accuracies[k, value].append(float((classes == test_targets).double().mean()))
    return FewShotResult(
        probe=probe,
        seeds=seeds,
        num_classes=num_classes,
        num_train=len(train),
        num_test=len(test),
        scores=tuple(_score(k, value, drawn) for (k, value), drawn in accuracies.items()),
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
        raise ConfigError(f"must be whole numbers above 0, such as 1,5,10,25; got {text!r}", option="shots")
    return tuple(int(part) for part in parts)


def require_enough(
    counts: NDArray[Any], shots: Sequence[int], *, class_names: Sequence[str] | None = None
) -> None:
    """Refuse more shots than a class has examples; `counts` holds the examples per class."""
    if min(shots, default=0) < 1:
        raise ConfigError(
            "must be at least one number, each at least 1; the paper's are 1, 5, 10 and 25", option="shots"
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
            f"{name} has no training examples{others}; add some, or remove the class from both sets"
        )
    raise DataError(
        f"{name} has {counted(have, 'training example')}, fewer than {max(shots)} shots{others}; "
        f"add examples or use at most {counted(have, 'shot')}"
    )


def open_support_and_test(
    data: str, *, test_fraction: float
) -> tuple[tuple[str, str], tuple[Source, Source]]:
    """Open the images to draw examples from and the images to test on, with their names.

    They are the data set's own splits, or two parts of a set without splits.
    """
    own = list_splits(data)
    # With a test set of its own, all of `train` may be drawn from; its `val` is not used.
    held_out = 0.0 if "test" in own else test_fraction
    splits = open_splits(data, val_fraction=held_out, allow_empty_class=True)
    test = "test" if "test" in splits else "val"
    if "train" not in splits or test not in splits:
        raise DataError(
            f"{data} has only {', '.join(splits)}; few-shot evaluation needs train, and test or val"
        )
    require_classes(splits["train"], data)
    if len(splits["train"].classes) == 1:
        raise DataError(f"all images of {printable(data)} have one class; add images of another class")
    if splits["train"].is_multi_label:
        raise DataError(f"{data} has several labels per image, or masks; few-shot evaluation needs one label")
    names = ("train", test if test in own else f"the {100 * test_fraction:g} % held out")
    return names, (splits["train"], match_classes(splits[test], splits["train"].classes))


def without_small_classes(train: Source, test: Source) -> tuple[Source, Source]:
    """Skip classes that are too small for more than one shot, and report them; the others decide the shots.

    They stay if they are most of the classes, or if fewer than two others are left.
    """
    counts, least = train.counts(), SHOTS[1]
    small = np.flatnonzero(counts < least)
    if not len(small) or 2 * len(small) > len(counts) or len(counts) - len(small) < 2:
        return train, test
    names = [f"{printable(train.classes[number])} ({counts[number]})" for number in small]
    notice(
        f"Skipped {some_of(names)}: fewer than {least} training examples would limit every class to "
        f"{counted(int(max(counts.min(), 1)), 'shot')}"
    )
    kept = [name for number, name in enumerate(train.classes) if counts[number] >= least]
    return _of_classes(train, kept), _of_classes(test, kept)


def _of_classes(source: Source, names: Sequence[str]) -> Source:
    numbers = [number for number, name in enumerate(source.classes) if name in set(names)]
    return match_classes(Subset(source, np.flatnonzero(np.isin(source.labels, numbers))), names)


def usual_shots(train: Source) -> tuple[int, ...]:
    """Return the usual numbers of shots for which every class has enough examples, or the smallest of them."""
    least = int(train.counts().min())
    wanted = tuple(number for number in SHOTS if number <= least) or SHOTS[:1]
    if len(wanted) < len(SHOTS):
        skipped = ", ".join(str(number) for number in SHOTS[len(wanted) :])
        notice(f"Skipping {skipped} shots: the smallest class has {counted(least, 'training example')}")
    return wanted


def _l2_values(l2: float | Sequence[float] | None, probe: Probe) -> tuple[float, ...]:
    if probe.default_l2 is None:
        if l2 is not None:
            raise ConfigError(
                f"the probe {probe.name} has no regularisation; omit l2 or choose another probe", option="l2"
            )
        return ()
    if l2 is None:
        return (probe.default_l2,)
    values = [float(l2)] if isinstance(l2, (int, float)) else [float(value) for value in l2]
    if not values or not all(value > 0 and math.isfinite(value) for value in values):
        raise ConfigError(f"must be above 0, got {l2}; the paper's protocol uses 1024", option="l2")
    return tuple(dict.fromkeys(values))


def _checked(features: Array, labels: Array, *, which: str) -> tuple[Tensor, Tensor]:
    """Return features (N, D) unchanged and labels (N,) int64, both on the CPU; refuse what cannot be used."""
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
        raise DataError(f"{which} features contain NaN or infinity; the model's weights may be damaged")
    return rows, targets.long()


def _count_classes(train: Tensor, test: Tensor, class_names: Sequence[str] | None) -> int:
    largest = int(max(train.max(), test.max()))
    if class_names is None:
        return largest + 1
    if largest >= len(class_names):
        raise DataError(
            f"label {largest} is outside the {len(class_names)} classes; "
            f"labels must be from 0 to {len(class_names) - 1}"
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
