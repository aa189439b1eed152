"""How well a temperature is fitted with few held-out pictures: three losses compared on real features.

    python benchmarks/frozen_features.py box CUB cub-box.npz --train 100 --test 100
    python benchmarks/temperatures.py cub-box.npz --shots 18 --held-out 50,100,200,400,1000

A classifier in closed form learns from some pictures per class; its logits on some of the others fit the temperature,
the rest measure it. FEATURES is an .npz of features (N, R), labels (N,) and split (N,), 0 for training.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.evaluation.calibration import calibration_error
from vitrine.evaluation.closed_form import fit_closed_form
from vitrine.evaluation.temperature import answer_losses, fit_temperature, log_losses

# Temperatures that are tried for the losses that the package does not use.
TRIED = torch.linspace(math.log(0.4), math.log(2.5), 61).exp().tolist()


def spread_losses(logits: Tensor, labels: Tensor, *, num_images: float) -> Tensor:
    """Return the log loss (N,) for labels that are smoothed over all classes."""
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=1 / (num_images + 2))


LOSSES = {"spread": spread_losses, "all classes": log_losses, "the answer": answer_losses}


def fitted(way: str, logits: Tensor, labels: Tensor) -> float:
    """Return the temperature that a loss asks for; `both` is the package's."""
    if way == "both":
        return fit_temperature(logits, labels)
    losses = [float(LOSSES[way](logits / one, labels, num_images=len(labels)).sum()) for one in TRIED]
    return TRIED[int(np.argmin(losses))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path)
    parser.add_argument("--shots", type=int, default=18)
    parser.add_argument("--held-out", default="50,100,200,400,1000")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--trials", type=int, default=10, help="held-out sets of each size and draw")
    parser.add_argument("--measured", type=int, default=3000, help="pictures that measure each temperature")
    options = parser.parse_args(arguments)
    with np.load(options.features) as stored:
        rows = torch.from_numpy(stored["features"]).double()
        labels = torch.from_numpy(stored["labels"]).long()
        is_train = stored["split"] == 0
    num_classes, generator = int(labels.max()) + 1, np.random.default_rng(0)
    sizes = [int(size) for size in options.held_out.split(",")]
    seen: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    for _ in range(options.draws):
        drawn = [
            generator.permutation(np.flatnonzero(is_train & (labels.numpy() == number)))[: options.shots]
            for number in range(num_classes)
        ]
        learned = np.concatenate(drawn)
        others = np.setdiff1d(np.arange(len(labels)), learned)
        solved = fit_closed_form(rows[learned], labels[learned], num_classes=num_classes)
        logits, own = solved.logits(rows[others]), labels[others]
        for size in sizes:
            for _ in range(options.trials):
                order = torch.from_numpy(generator.permutation(len(others)))
                held, rest = order[:size], order[size : size + options.measured]
                for way in (*LOSSES, "both"):
                    scaled = logits[rest] / fitted(way, logits[held], own[held])
                    confidence = float(scaled.softmax(1).amax(1).mean())
                    gap = confidence - float((scaled.argmax(1) == own[rest]).double().mean())
                    loss = float(F.cross_entropy(scaled, own[rest]))
                    seen.setdefault((size, way), []).append((calibration_error(scaled, own[rest]), gap, loss))
    print("| held out | loss | calibration error [%] | confidence minus accuracy [points] | log loss |")
    print("|---|---|---|---|---|")
    for (size, way), values in seen.items():
        error, gap, loss = np.mean(values, axis=0)
        spread = np.std(values, axis=0)[1]
        print(
            f"| {size} | {way} | {100 * error:.2f} | {100 * gap:+.2f} ± {100 * spread:.2f} | {loss:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
