"""Measure prediction sets, wrong labels and what to label next on frozen features: figures of docs/experiments.md.

    python benchmarks/trust.py coverage FEATURES.npz --draws 200
    python benchmarks/trust.py labels FEATURES.npz --flipped 0.05 --draws 5
    python benchmarks/trust.py suggest FEATURES.npz --start 2 --count 100 --rounds 3 --draws 10

FEATURES.npz comes from benchmarks/frozen_features.py.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.evaluation.closed_form import L2_CHOICES, fit_closed_form
from vitrine.evaluation.label_errors import find_label_errors
from vitrine.evaluation.labelling import choose_to_label
from vitrine.evaluation.prediction_sets import held_out_scores, prediction_sets

COVERAGES = (0.8, 0.9, 0.95)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("coverage", "labels", "suggest"))
    parser.add_argument("features", type=Path)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--flipped", type=float, default=0.05)
    parser.add_argument("--start", type=int, default=2)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    arrays = np.load(options.features)
    rows = torch.from_numpy(arrays["features"])
    labels = torch.from_numpy(arrays["labels"]).long()
    is_test = torch.from_numpy(arrays["split"]) == 1
    train, test = (rows[~is_test], labels[~is_test]), (rows[is_test], labels[is_test])
    if options.what == "coverage":
        figures = coverage(train, test, draws=options.draws)
    elif options.what == "labels":
        figures = wrong_labels(train, flipped=options.flipped, draws=options.draws)
    else:
        figures = suggestions(
            train, test, start=options.start, count=options.count, rounds=options.rounds, draws=options.draws
        )
    print(json.dumps(figures, indent=2))


Set = tuple[Tensor, Tensor]


def coverage(train: Set, test: Set, *, draws: int) -> dict[str, Any]:
    """Divide the test images in two: one half sets the thresholds, the other half counts what sets contain."""
    num_classes = int(train[1].max()) + 1
    fitted = fit_closed_form(*train, num_classes=num_classes, l2=L2_CHOICES)
    probabilities, labels = fitted.probabilities(test[0]), test[1]
    figures: dict[str, Any] = {}
    left_out = held_out_scores(fitted.left_out_logits.softmax(dim=1), train[1])
    for promised in COVERAGES:
        covered, sizes = [], []
        sets = prediction_sets(probabilities, left_out.thresholds(promised, num_classes=num_classes))
        of_training = sets[np.arange(len(labels)), labels.numpy()].mean()
        for draw in range(draws):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(draw))
            held_out, rest = order.chunk(2)
            known = held_out_scores(probabilities[held_out], labels[held_out])
            sets = prediction_sets(probabilities[rest], known.thresholds(promised, num_classes=num_classes))
            covered.append(sets[np.arange(len(rest)), labels[rest].numpy()].mean())
            sizes.append(sets.sum(axis=1).mean())
        figures[f"{promised:g}"] = {
            "coverage": mean_and_spread(covered),
            "classes per set": f"{np.mean(sizes):.2f} ± {np.std(sizes):.2f}",
            "coverage, thresholds from left-out training images": f"{100 * of_training:.2f}",
        }
    figures["accuracy"] = (probabilities.argmax(1) == labels).double().mean().item()
    return figures


def wrong_labels(train: Set, *, flipped: float, draws: int) -> dict[str, Any]:
    """Give a share of the images another class at random, and count how many of the suspects these are."""
    rows, labels = train
    num_classes = int(labels.max()) + 1
    results: dict[str, list[float]] = {}
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        is_flipped = torch.zeros(len(labels), dtype=torch.bool)
        is_flipped[torch.randperm(len(labels), generator=generator)[: round(flipped * len(labels))]] = True
        shift = torch.randint(1, num_classes, labels.shape, generator=generator)
        noisy = torch.where(is_flipped, (labels + shift) % num_classes, labels)
        suspects = find_label_errors(rows, noisy, num_classes=num_classes, seed=draw)
        hits = np.array([bool(is_flipped[one.index]) for one in suspects])
        count = int(is_flipped.sum())
        results.setdefault("precision of all suspects", []).append(float(hits.mean()))
        results.setdefault("recall of all suspects", []).append(float(hits.sum() / count))
        results.setdefault(f"precision of the first {count}", []).append(float(hits[:count].mean()))
        results.setdefault("precision of the first 20", []).append(float(hits[:20].mean()))
        right = [
            noisy[one.index] != labels[one.index] and one.suggested == labels[one.index] for one in suspects
        ]
        results.setdefault("true class suggested, of flipped suspects", []).append(
            float(sum(right) / hits.sum())
        )
    return {name: mean_and_spread(values) for name, values in results.items()}


def suggestions(train: Set, test: Set, *, start: int, count: int, rounds: int, draws: int) -> dict[str, Any]:
    """Label a few images per class, then more by each way of choosing; compare the accuracy on the test images."""
    (rows, labels), num_classes = train, int(train[1].max()) + 1
    ways: dict[str, Callable[..., Tensor]] = {
        "random": at_random,
        "margin": by_margin,
        "suggest": choose_to_label,
    }
    accuracies: dict[str, list[list[float]]] = {name: [] for name in ways}
    for draw in range(draws):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(draw))
        first = torch.cat([order[labels[order] == k][:start] for k in range(num_classes)])
        for name, choose in ways.items():
            labelled, curve = first, []
            for number in range(rounds + 1):
                fitted = fit_closed_form(
                    rows[labelled], labels[labelled], num_classes=num_classes, l2=L2_CHOICES
                )
                curve.append((fitted.scores(test[0]).argmax(1) == test[1]).double().mean().item())
                if number < rounds:
                    pool = torch.tensor(sorted(set(range(len(labels))) - set(labelled.tolist())))
                    picked = choose(
                        rows[pool], fitted.probabilities(rows[pool]), count=count, seed=1000 * draw + number
                    )
                    labelled = torch.cat([labelled, pool[picked]])
            accuracies[name].append(curve)
    figures: dict[str, Any] = {}
    for number in range(rounds + 1):
        budget = start * num_classes + number * count
        at = {name: np.array([curve[number] for curve in curves]) for name, curves in accuracies.items()}
        figures[f"{budget} labels"] = {name: mean_and_spread(values) for name, values in at.items()}
        gain = at["suggest"] - at["random"]
        half = 1.96 * gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else float("nan")
        figures[f"{budget} labels"]["suggest less random, 95 % interval"] = (
            f"{100 * gain.mean():+.2f} ({100 * (gain.mean() - half):+.2f} to {100 * (gain.mean() + half):+.2f})"
        )
    return figures


def at_random(features: Tensor, probabilities: Tensor, *, count: int, seed: int) -> Tensor:
    return torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:count]


def by_margin(features: Tensor, probabilities: Tensor, *, count: int, seed: int) -> Tensor:
    best = probabilities.topk(2, dim=1).values
    return (best[:, 0] - best[:, 1]).argsort()[:count]


def mean_and_spread(values: Sequence[float]) -> str:
    spread = f" ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.2f}{spread}"


if __name__ == "__main__":
    main()
