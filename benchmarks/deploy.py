"""Export a model to every target and print one row per runtime: agreement, size, time beside fp32 in onnxruntime.

    python benchmarks/deploy.py MODEL --calibrate TRAIN --data TEST

TRAIN and TEST are folders with one folder per class. Times are processor time on one thread, in turns, so that other
work on the machine changes them little; the ratio is the median over the rounds. Packages that are not installed are
named and skipped: onnxruntime, openvino, executorch, ai-edge-litert with litert-torch, coremltools.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrine
from vitrine.errors import MissingExtraError
from vitrine.exporting import open_runner
from vitrine.exporting.edge import FILES as EDGE_FILES
from vitrine.exporting.edge import open_executorch, open_litert
from vitrine.exporting.runner import FILES

TARGETS = ("onnx", "executorch", "litert", "coreml", "triton")
BASE = "onnxruntime", "fp32"
NUM_COMPARED = 16
Run = Callable[[torch.Tensor], object]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--calibrate", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", default="1,8")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs: dict[tuple[str, str], Run] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in options.targets.split(","):
            try:
                result = export(options, target, Path(folder) / target)
            except MissingExtraError as error:
                print(f"{target}: skipped, {error}")
                continue
            report(result)
            runs |= runs_of(result.folder, target)
        compare(options, runs)


def export(options: argparse.Namespace, target: str, folder: Path) -> "vitrine.Result":
    options_of: dict[str, Any] = {"count": NUM_COMPARED}
    if target == "onnx":  # the accuracy of a file that agrees in fp32 is the model's
        options_of |= {"int8": True, "calibrate": options.calibrate, "allow_loss": True, "data": options.data}
    return vitrine.export(
        options.model, to=target, out=folder, images=options.data, speed=False, **options_of
    )


def report(result: "vitrine.Result") -> None:
    """Print agreement, accuracy and size of one export."""
    accuracy = {(each.against, each.precision): each for each in result.accuracy}
    for check in result.proof:
        line = f"{result.to}: {check.against}, {check.precision}: "
        if check.largest is None:
            print(f"{line}not compared, {check.reason}")
            continue
        line += (
            f"largest difference {check.largest:.1e} of {check.scale:.3g}, top-1 the same {check.top1:.3f}"
        )
        score = accuracy.get((check.against, check.precision))
        if score is not None:
            line += f"; top-1 {score.top1} of {score.num_images}, {100 * score.cost:+.2f} points lost"
            line += f", {100 * score.changed:.2f} % changed"
        print(line)
    print(
        f"{result.to}: " + ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in result.sizes.items())
    )


def runs_of(folder: Path, target: str) -> dict[tuple[str, str], Run]:
    """Open every file of an export on one thread, in every runtime that is installed."""
    runs: dict[tuple[str, str], Run] = {}
    openers = {"executorch": open_executorch, "litert": open_litert}
    if target in openers:
        run = openers[target](folder / EDGE_FILES[target])
        runs[target, "fp32"] = lambda images: [run(image[None]) for image in images]
    for engine in ("onnxruntime", "openvino"):
        for precision in ("fp32", "int8", "int8-static"):
            if not (folder / FILES[precision]).exists():
                continue
            try:
                runner = open_runner(folder / FILES[precision], engine=engine, threads=1)
            except MissingExtraError as error:
                print(f"{engine}: skipped, {error}")
                break
            runs[engine, precision] = lambda images, runner=runner: runner(images.numpy())
    return runs


def compare(options: argparse.Namespace, runs: dict[tuple[str, str], Run]) -> None:
    """Time all runs in turns and print their ratio to fp32 in onnxruntime."""
    size = vitrine.load(options.model).preprocess.size
    for count in map(int, options.batches.split(",")):
        images = torch.rand(count, 3, *size)
        seconds: dict[tuple[str, str], list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run(images)
        for _ in range(options.rounds):
            for name, run in runs.items():
                began = time.process_time()
                run(images)
                seconds[name].append(time.process_time() - began)
        for name, each in seconds.items():
            ratio = statistics.median(np.divide(each, seconds[BASE]).tolist())
            print(
                f"{count} images, {' '.join(name)}: {1000 * min(each):.1f} ms at best, {ratio:.2f} x {' '.join(BASE)}"
            )


if __name__ == "__main__":
    main()
