"""How well a temperature is fitted with few held-out pictures: three losses compared on real features.

    python benchmarks/frozen_features.py box CUB cub-box.npz --train 100 --test 100
    python benchmarks/temperatures.py cub-box.npz --shots 18 --held-out 50,100,200,400,1000

    python benchmarks/temperatures.py out/cars-box-*-new.npz   logits of fine-tuned models (answers_table.py --logits)

A classifier in closed form learns from some pictures per class; its logits on some of the others fit the temperature,
the rest measure it. FEATURES is an .npz of features (N, R), labels (N,) and split (N,), 0 for training. Files of
logits are compared at the temperatures that their held-out pictures ask for, over the test pictures of all of them.
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


def squares(logits: Tensor, labels: Tensor, *, num_images: float) -> Tensor:
    """Return the Brier score (N,) of one event: the most likely class is the label."""
    confidence, answer = logits.softmax(dim=1).max(dim=1)
    return (confidence - (answer == labels).double()).square()


LOSSES = {"spread": spread_losses, "all classes": log_losses, "the answer": answer_losses}
# Those that are compared on files of logits.
EVERY_LOSS = {**LOSSES, "Brier score of the answer": squares}


def fitted(way: str, logits: Tensor, labels: Tensor) -> float:
    """Return the temperature that a loss asks for; `both` is the package's."""
    if way == "both":
        return fit_temperature(logits, labels)
    losses = [float(EVERY_LOSS[way](logits / one, labels, num_images=len(labels)).sum()) for one in TRIED]
    return TRIED[int(np.argmin(losses))]


def compare_logits(files: Sequence[Path]) -> None:
    """Print the calibration error over the test pictures of all files, by each way to fit a temperature."""
    scaled: dict[str, list[Tensor]] = {}
    labels = []
    for file in files:
        with np.load(file) as stored:
            arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
        held, own = arrays["held_out"].double(), arrays["held_out_labels"].long()
        unit = fit_temperature(held, own)  # test logits were divided by it
        held, test = held / unit, arrays["test"].double()
        labels.append(arrays["test_labels"].long())
        right = float((held.argmax(1) == own).double().mean())
        gaps = [abs(float((held / one).softmax(1).amax(1).mean()) - right) for one in TRIED]
        temperatures = {way: fitted(way, held, own) for way in (*EVERY_LOSS, "both")}
        temperatures["mean confidence"] = TRIED[int(np.argmin(gaps))]
        errors = [calibration_error(test / one, labels[-1]) or 0.0 for one in TRIED]
        temperatures["best for the test pictures"] = TRIED[int(np.argmin(errors))]
        for way, temperature in temperatures.items():
            scaled.setdefault(way, []).append(test / temperature)
    print("| loss | calibration error [%] | confidence minus accuracy [points] |\n|---|---|---|")
    for way, parts in scaled.items():
        logits, truth = torch.cat(parts), torch.cat(labels)
        gap = float(logits.softmax(1).amax(1).mean() - (logits.argmax(1) == truth).double().mean())
        print(
            f"| {way} | {100 * (calibration_error(logits, truth) or 0.0):.2f} | {100 * gap:+.2f} |",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path, nargs="+", help="one file of features, or files of logits")
    parser.add_argument("--shots", type=int, default=18)
    parser.add_argument("--held-out", default="50,100,200,400,1000")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--trials", type=int, default=10, help="held-out sets of each size and draw")
    parser.add_argument("--measured", type=int, default=3000, help="pictures that measure each temperature")
    options = parser.parse_args(arguments)
    with np.load(options.features[0]) as stored:
        if "held_out" in stored:
            compare_logits(options.features)
            return
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
