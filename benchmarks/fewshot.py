"""Time and memory of few-shot at ImageNet's size: 1,000 classes, 10 shots, 768 features, 50,000 test rows.

    python benchmarks/fewshot.py

Prints seconds of `vitrine.fewshot_accuracy` for one and for three seeds, and the peak memory of the process.
"""

import resource
import time

import torch

from vitrine.evaluation.fewshot import fewshot_accuracy

NUM_CLASSES, SHOTS, WIDTH, TEST_ROWS, TRAIN_PER_CLASS = 1000, 10, 768, 50_000, 13


def main() -> None:
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(NUM_CLASSES, WIDTH, generator=generator)
    train_labels = torch.arange(NUM_CLASSES).repeat(TRAIN_PER_CLASS)
    test_labels = torch.arange(NUM_CLASSES).repeat(TEST_ROWS // NUM_CLASSES)
    train, test = (
        centres[labels] + 5 * torch.randn(len(labels), WIDTH, generator=generator)
        for labels in (train_labels, test_labels)
    )
    print(f"{NUM_CLASSES} classes, {SHOTS}-shot, {WIDTH} features, {TEST_ROWS} test rows, 2 threads")
    for seeds in (1, 3):
        began = time.perf_counter()
        result = fewshot_accuracy(train, train_labels, test, test_labels, shots=[SHOTS], seeds=seeds)
        print(
            f"{seeds} seed(s): {time.perf_counter() - began:.1f} s, accuracy {100 * result.scores[0].mean:.2f} %"
        )
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
