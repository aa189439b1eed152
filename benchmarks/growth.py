"""Measure how cost grows: double one quantity several times, keep the rest fixed, and fit the exponent.

    python benchmarks/growth.py [--rounds 5] [--only tokens,width] [--sizes 2]

Measures processor seconds of this process (other load hardly changes them), the minimum over the rounds; the sizes
take turns within a round. The exponent is the slope of the logarithms over the larger half of the sizes, where
overhead no longer counts, next to its theoretical bound: a forward pass is linear in images, layers and, until
attention dominates (tokens near six widths), in tokens, and quadratic in width; the search for copies is linear in
either set; solving few-shot is linear in test examples and cubic in the smaller of examples and features. Rows above
their bound are marked.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrine.data.auditing.near_duplicates import feature_pairs, near_pairs
from vitrine.data.loading.order import training_rows
from vitrine.data.sources.opening import open_source
from vitrine.evaluation.fewshot import fewshot_accuracy
from vitrine.models import ViT, ViTConfig

Work = Callable[[], object]
# Tolerance of an exponent: caches, blocks and a noisy clock bend a straight line.
SLACK = 0.25


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One quantity: its sizes, the upper bound of its exponent, and the work at a size."""

    name: str
    sizes: tuple[int, ...]
    bound: float
    work_at: Callable[[int], Work]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="some of the quantities, separated by commas")
    parser.add_argument("--sizes", type=int, help="only the first sizes of each quantity, at least 2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = set(filter(None, options.only.split(",")))
    print("| quantity | sizes | seconds | exponent | at most |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for growth in growths(Path(folder)):
            if not wanted or growth.name in wanted:
                shorter = replace(growth, sizes=growth.sizes[: options.sizes])
                print(row(shorter, seconds_of(shorter, rounds=options.rounds)), flush=True)


def growths(folder: Path) -> Iterator[Growth]:
    yield Growth(name="images", sizes=(2, 4, 8, 16, 32), bound=1, work_at=lambda n: forward(batch=n))
    yield Growth(
        name="tokens",
        sizes=(36, 64, 144, 256, 576),
        bound=1.5,
        work_at=lambda n: forward(side=16 * math.isqrt(n)),
    )
    yield Growth(name="width", sizes=(96, 192, 384, 768), bound=2, work_at=lambda n: forward(width=n))
    yield Growth(name="depth", sizes=(2, 4, 8, 16), bound=1, work_at=lambda n: forward(depth=n))
    yield Growth(name="training-images", sizes=(2, 4, 8, 16), bound=1, work_at=backward)
    yield Growth(name="processes", sizes=(1, 2, 4), bound=0, work_at=on_processes)
    yield Growth(
        name="files-listed",
        sizes=(2_000, 4_000, 8_000, 16_000),
        bound=1,
        work_at=lambda n: listing(folder, n),
    )
    yield Growth(name="order", sizes=(2**16, 2**20, 2**24, 2**28), bound=0, work_at=ordering)
    yield Growth(
        name="copies-searched",
        sizes=(5_000, 10_000, 20_000, 40_000),
        bound=1,
        work_at=lambda n: thumbnails(n, 256),
    )
    yield Growth(
        name="features-searched",
        sizes=(10_000, 20_000, 40_000, 80_000),
        bound=1,
        work_at=lambda n: features(n, 512),
    )
    yield Growth(
        name="few-shot-classes", sizes=(25, 50, 100, 200), bound=2, work_at=lambda n: few_shot(classes=n)
    )
    yield Growth(
        name="few-shot-tests",
        sizes=(2_000, 4_000, 8_000, 16_000),
        bound=1,
        work_at=lambda n: few_shot(tests=n),
    )


def forward(*, batch: int = 4, side: int = 96, width: int = 192, depth: int = 6) -> Work:
    model = small_vit(side=side, width=width, depth=depth).eval()
    images = torch.randn(batch, 3, side, side)

    def work() -> object:
        with torch.inference_mode():
            return model(images)

    return work


def backward(batch: int) -> Work:
    model, images = small_vit(side=96, width=192, depth=6), torch.randn(batch, 3, 96, 96)
    return lambda: model(images).sum().backward()


class Spent(float):
    """Seconds measured by the work itself."""


def on_processes(count: int) -> Work:
    """Steps of one global batch divided among processes (DDP, gloo): the total time of all processes."""

    def work() -> object:
        context = torch.multiprocessing.get_context("spawn")
        answers = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as place:
            processes = [
                context.Process(target=share_of_step, args=(rank, count, f"file://{place}/meet", answers))
                for rank in range(count)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
        return Spent(sum(answers.get() for _ in processes))

    return work


def share_of_step(rank: int, count: int, place: str, answers: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=count)
    model = torch.nn.parallel.DistributedDataParallel(small_vit(side=96, width=192, depth=6))
    images = torch.randn(32 // count, 3, 96, 96)
    model(images).sum().backward()
    began = time.process_time()
    for _ in range(5):
        model(images).sum().backward()
    answers.put((time.process_time() - began) / 5)
    torch.distributed.destroy_process_group()


def small_vit(*, side: int, width: int, depth: int) -> ViT:
    return ViT(
        ViTConfig(
            width=width, depth=depth, num_heads=width // 32, mlp_width=4 * width, patch_size=(16, 16),
            image_size=(side, side), num_classes=10,
        )
    )  # fmt: skip


def listing(folder: Path, count: int) -> Work:
    root = folder / str(count)
    for number in range(count):
        path = root / f"class{number % 20:02d}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return lambda: open_source(root)


def ordering(length: int) -> Work:
    """The images of step 1,000: a pure function, so its time must not depend on the length."""
    return lambda: [
        training_rows(step, length=length, batch_size=256, seed=0) for step in range(1_000, 1_020)
    ]


def thumbnails(count: int, queries: int) -> Work:
    base = np.random.default_rng(0).integers(0, 256, (count, 32, 32), dtype=np.uint8)
    return lambda: near_pairs(base[:queries], base)


def features(count: int, queries: int) -> Work:
    base = np.random.default_rng(0).normal(size=(count, 192)).astype(np.float32)
    return lambda: feature_pairs(base[:queries], base)


def few_shot(*, classes: int = 50, tests: int = 2_000) -> Work:
    rng = np.random.default_rng(0)
    labels, test_labels = np.repeat(np.arange(classes), 10), np.arange(tests) % classes
    train, test = (rng.normal(size=(n, 384)) for n in (len(labels), tests))
    return lambda: fewshot_accuracy(train, labels, test, test_labels, shots=[10], seeds=1)


def seconds_of(growth: Growth, *, rounds: int) -> list[float]:
    works = [growth.work_at(size) for size in growth.sizes]
    repeats = [max(1, math.ceil(0.05 / max(clocked(work), 1e-6))) for work in works]  # also the warm-up
    best = [math.inf] * len(works)
    for _ in range(rounds):
        for number, (work, count) in enumerate(zip(works, repeats, strict=True)):
            best[number] = min(best[number], clocked(work, repeats=count))
    return best


def clocked(work: Work, *, repeats: int = 1) -> float:
    began, told = time.process_time(), 0.0
    for _ in range(repeats):
        result = work()
        told += result if isinstance(result, Spent) else 0.0
    return (told or time.process_time() - began) / repeats


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    half = len(sizes) // 2
    slope, _ = np.polyfit(np.log(sizes[half - 1 :]), np.log(seconds[half - 1 :]), 1)
    return float(slope)


def row(growth: Growth, seconds: list[float]) -> str:
    slope = exponent(growth.sizes, seconds)
    mark = "" if slope <= growth.bound + SLACK else " **above**"
    sizes = ", ".join(f"{size:,}" for size in growth.sizes)
    times = ", ".join(f"{value:.3g}" for value in seconds)
    return f"| {growth.name} | {sizes} | {times} | {slope:.2f}{mark} | {growth.bound:g} |"


if __name__ == "__main__":
    main()
