"""The CUDA mode of `benchmarks/data.py`: a training step on files beside the same step on synthetic batches."""

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrine.data.augmenting.augment import Augment, augment
from vitrine.data.loading.loader import Batch, Loader
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.sources.opening import open_source
from vitrine.models import create_model
from vitrine.models.kernels import use_kernels


def on_cuda(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time a training step on synthetic batches and on files, in rounds; and each part of loading alone."""
    figures: dict[str, Any] = {}
    source, device = open_source(root), torch.device("cuda")
    view = TrainView(size=(options.size, options.size))
    # The paper's own augmentation is only crop and flip; the other one is for small data.
    paper, strong = Augment(), Augment(num_operations=2, magnitude=10, mixup=0.2)
    cells = [(int(cell.split(":")[0]), float(cell.split(":")[1])) for cell in options.cells.split(",")]
    with contextlib.ExitStack() as stack:
        loaders = {}
        for workers, share in cells:  # all loaders at once: processes start while the model is compiled
            name = f"{workers} processes, {100 * share:.0f} % on the device"
            loaders[name] = stack.enter_context(
                Loader(
                    source, view, batch_size=options.batch, num_workers=workers, worker_kind="processes",
                    device=device, prefetch_batches=4, device_share=share,
                )
            )  # fmt: skip
        step = training_step(device, compiled=options.compile, precision=options.precision)
        ready = (
            torch.randn(options.batch, 3, options.size, options.size, device=device, dtype=torch.bfloat16),
            torch.full((options.batch, 1000), 1e-3, device=device),
        )
        step_rate(step, itertools.repeat(ready, 14))
        figures |= parts_alone(loaders, source, view, strong, options)

        def synthetic() -> float:
            return step_rate(step, itertools.repeat(ready, options.steps + 12))[0]

        def from_files(name: str, config: Augment) -> tuple[float, float]:
            return step_rate(
                step, inputs(loaders[name].training_batches(stop_step=options.steps + 12), config)
            )

        shares: dict[str, list[float]] = {name: [] for name in loaders}
        for number in range(options.rounds):
            bare = synthetic()
            print(f"round {number}: ViT-B/16 step on synthetic data: {bare:.0f} images/s", flush=True)
            for name in loaders:
                real, waited = from_files(name, paper)
                shares[name].append(real / bare)
                print(f"  {name}: {real:.0f} images/s, {100 * real / bare:.1f} %, waits {waited:.1f} ms per step",
                      flush=True)  # fmt: skip
        best = max(shares, key=lambda name: statistics.mean(shares[name]))
        figures["shares of synthetic"] = shares
        print(
            f"best: {best}: {100 * statistics.mean(shares[best]):.1f} % of synthetic ({len(shares[best])} rounds)"
        )
        batch = next(loaders[best].training_batches())
        for number in range(options.rounds):
            bare, made = (
                synthetic(),
                step_rate(step, inputs(itertools.repeat(batch, options.steps + 12), strong))[0],
            )
            real, waited = from_files(best, strong)
            figures[f"RandAugment and mixup, round {number}"] = {
                "synthetic": bare,
                "resident": made,
                "real": real,
            }
            print(
                f"with RandAugment and mixup, round {number}: synthetic {bare:.0f}, a resident batch "
                f"augmented in each step {made:.0f}, files {real:.0f} images/s: "
                f"{100 * real / bare:.1f} % and {100 * real / made:.1f} %",
                flush=True,
            )
    return figures


def inputs(batches: Iterable[Batch], config: Augment) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Augment batches and convert them to the model's input."""
    for batch in batches:
        pixels, targets = augment(
            batch.images, batch.labels, batch.rows, config=config, num_classes=1000, seed=0
        )
        yield Preprocess(size=pixels.shape[-2:]).normalise(pixels, dtype=torch.bfloat16), targets


def parts_alone(
    loaders: dict[str, Loader], source: Any, view: TrainView, config: Augment, options: argparse.Namespace
) -> dict[str, float]:
    """Time each loader without a model, nvJPEG with the cut, and the augmentation of one batch."""
    rates: dict[str, float] = {}
    for name, loader in loaders.items():
        batches = inputs(loader.training_batches(stop_step=options.steps + 20), Augment())
        rates[name] = rate((len(images) for images, _ in batches), uncounted=10)
        print(f"files to bf16 batches, no model, {name}: {rates[name]:.0f} images/s", flush=True)
        batch = next(loader.training_batches())
    rates["nvJPEG and cut"], by_cpu = nvjpeg_rate(source, view, batch=options.batch)
    print(
        f"nvJPEG and cut, one thread, files in memory: {rates['nvJPEG and cut']:.0f} images/s, "
        f"{by_cpu} of {options.batch} left to the CPU",
        flush=True,
    )
    for name, chosen in (("crop and flip only", Augment()), ("RandAugment and mixup", config)):
        times = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        for number, _ in enumerate(inputs(itertools.repeat(batch, 13), chosen)):
            if number in (2, 12):
                times[number == 12].record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        rates[f"{name}, ms"] = times[0].elapsed_time(times[1]) / 10  # type: ignore[no-untyped-call]
        print(
            f"{name} and to bf16: {rates[f'{name}, ms']:.2f} ms per batch on the device, no model", flush=True
        )
    return rates


def nvjpeg_rate(source: Any, view: TrainView, *, batch: int) -> tuple[float, int]:
    from vitrine.data.loading.nvjpeg import render_rows
    from vitrine.data.randomness import uniforms

    examples = [source.read(number % len(source)) for number in range(batch)]
    numbers = uniforms(0, stream="view", epochs=0, positions=np.arange(batch), count=view.num_uniforms)

    by_cpu = 0

    def rounds() -> Iterator[int]:
        nonlocal by_cpu
        for _ in range(12):
            by_cpu = render_rows(examples, numbers=numbers, view=view, device=torch.device("cuda")).num_by_cpu
            torch.cuda.synchronize()
            yield batch

    return rate(rounds()), by_cpu


def training_step(
    device: torch.device, *, compiled: bool, precision: str
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    model = create_model("ViT-B/16", num_classes=1000).to(device)
    use_kernels(model, device=device, precision=precision)  # as training does
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    network: Any = torch.compile(model) if compiled else model

    def step(images: torch.Tensor, targets: torch.Tensor) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(images), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def step_rate(step: Callable[..., None], batches: Iterable[Any]) -> tuple[float, float]:
    """Images per second of training, and the host's wait for a batch in ms; the first ten steps are not counted.

    The device's own clock is read, because a synchronisation would give the loader time to prepare batches.
    """
    images, waited, asked = 0, 0.0, 0.0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for number, (pixels, targets) in enumerate(batches):
        if number == 10:
            begin.record()  # type: ignore[no-untyped-call]
        if number >= 10:
            images += len(pixels)
            waited += time.perf_counter() - asked
        step(pixels, targets)
        asked = time.perf_counter()
    end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    seconds = begin.elapsed_time(end) / 1000  # type: ignore[no-untyped-call]
    return images / seconds, 1000 * waited * len(pixels) / images


def rate(batches: Iterator[int], *, uncounted: int = 2) -> float:
    """Images per second after the first batches: starting processes is not counted."""
    images, start = 0, 0.0
    for number, count in enumerate(batches):
        if number == uncounted - 1:
            start = time.perf_counter()
        elif number >= uncounted:
            images += count
    return images / (time.perf_counter() - start)
