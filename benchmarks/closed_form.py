"""Evidence of the closed form beside test pictures: left-out accuracy, confidence and calibration error.

    python benchmarks/answers_table.py run packs features --models box --arms features --size 224 --jobs 1
    python benchmarks/closed_form.py features/cars-box-features.npz --shots 5,20 --draws 3

FEATURES is an .npz of features (N, R), labels (N,) and split (N,), 0 for training. Every draw learns from some
training pictures per class and is measured on all test pictures. Prints a row per number of pictures, the means.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vitrine.evaluation.calibration import calibration_error
from vitrine.evaluation.closed_form import fit_closed_form


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path)
    parser.add_argument("--shots", default="5,20", help="training pictures per class")
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args(arguments)
    with np.load(options.features) as stored:
        rows, is_train = torch.from_numpy(stored["features"]).double(), stored["split"] == 0
        labels = torch.from_numpy(stored["labels"]).long()
    num_classes, test = int(labels.max()) + 1, torch.from_numpy(np.flatnonzero(~is_train))
    print(
        "| per class | method | left-out accuracy | test accuracy | confidence minus it | calibration error | s |"
    )
    print("|---|---|---|---|---|---|---|")
    for shots in map(int, options.shots.split(",")):
        measured, method = [], ""
        for draw in range(options.draws):
            generator = np.random.default_rng(100 + draw)
            drawn = [
                generator.permutation(np.flatnonzero(is_train & (labels.numpy() == number)))[:shots]
                for number in range(num_classes)
            ]
            learned = torch.from_numpy(np.sort(np.concatenate(drawn)))
            began = time.perf_counter()
            solved = fit_closed_form(rows[learned], labels[learned], num_classes=num_classes)
            seconds, method = time.perf_counter() - began, solved.method
            logits = solved.logits(rows[test])
            right = float((logits.argmax(1) == labels[test]).double().mean())
            confidence = float(logits.softmax(1).amax(1).mean())
            error = calibration_error(logits, labels[test]) or 0.0
            measured.append((solved.left_out_accuracy, right, confidence - right, error, seconds / 100))
        left_out, right, gap, error, seconds = 100 * np.mean(measured, axis=0)
        print(
            f"| {shots} | {method} | {left_out:.2f} | {right:.2f} | {gap:+.2f} | {error:.2f} | {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
