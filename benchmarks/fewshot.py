"""Measure time and memory of few-shot evaluation at ImageNet's size.

    python benchmarks/fewshot.py

By default 1,000 classes, 10 shots, 768 features and 50,000 test rows. Prints the seconds of
`vitrine.fewshot_accuracy` for one and for three seeds, and the peak memory of the process.
"""

import argparse
import resource
import time

import torch

from vitrine.evaluation.fewshot import fewshot_accuracy

EXTRA_PER_CLASS = 3  # training rows beyond the shots, so that seeds draw different ones


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--width", type=int, default=768, help="features per row")
    parser.add_argument("--test-rows", type=int, default=50_000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(options.classes, options.width, generator=generator)
    train_labels = torch.arange(options.classes).repeat(options.shots + EXTRA_PER_CLASS)
    test_labels = torch.arange(options.classes).repeat(options.test_rows // options.classes)
    train, test = (
        centres[labels] + 5 * torch.randn(len(labels), options.width, generator=generator)
        for labels in (train_labels, test_labels)
    )
    print(
        f"{options.classes} classes, {options.shots}-shot, {options.width} features, {len(test)} test rows, "
        f"{options.threads} threads"
    )
    for seeds in (1, 3):
        began = time.perf_counter()
        result = fewshot_accuracy(train, train_labels, test, test_labels, shots=[options.shots], seeds=seeds)
        seconds, accuracy = time.perf_counter() - began, 100 * result.scores[0].mean
        print(f"{seeds} seed(s): {seconds:.1f} s, accuracy {accuracy:.2f} %")
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
