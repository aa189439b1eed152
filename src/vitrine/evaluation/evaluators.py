"""Further measurements of a classifier, each a function of its outputs on a split, by name.

Every registered evaluator runs in `vitrine.evaluate`: its numbers are in the result, in metrics.json and on the page.
A new one is a file with a function and one line:

    register_evaluator("certain", lambda score: {"certain": float((score.probabilities.max(axis=1) > 0.9).mean())})
"""

from collections.abc import Callable, Mapping

import numpy as np

from vitrine.errors import ConfigError
from vitrine.evaluation.scoring import SplitScore

Evaluator = Callable[[SplitScore], Mapping[str, float]]
"""From a model's outputs on a split to numbers by name; empty if it does not apply to the split."""

EVALUATORS: dict[str, Evaluator] = {}


def register_evaluator(name: str, evaluator: Evaluator) -> Evaluator:
    """Add an evaluator to every evaluation; a name in use is refused."""
    if name in EVALUATORS:
        raise ConfigError(f"the evaluator name {name!r} is in use; choose another name")
    EVALUATORS[name] = evaluator
    return evaluator


def run_evaluators(score: SplitScore) -> dict[str, float]:
    """Run every registered evaluator; two that report the same number's name, or no plain number, are refused."""
    numbers: dict[str, float] = {}
    for name, evaluator in EVALUATORS.items():
        for key, value in evaluator(score).items():
            if key in numbers:
                raise ConfigError(
                    f"the evaluator {name!r} reports {key!r}, which another evaluator reports too"
                )
            if not np.isfinite(value):
                raise ConfigError(
                    f"the evaluator {name!r} reports {value} for {key!r}; it must be a finite number"
                )
            numbers[key] = float(value)
    return numbers


def majority_accuracy(score: SplitScore) -> dict[str, float]:
    """Return the accuracy of always answering the most common class: what a model must beat."""
    if score.source.is_multi_label:
        return {}
    labels = score.source.labels[score.outputs.readable]
    return {"majority_accuracy": float(np.bincount(labels).max() / len(labels))}


register_evaluator("majority", majority_accuracy)
