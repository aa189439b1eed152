"""Time data loading, files to batches: Vitrine, timm's loader and torchvision's ImageFolder in one run.

On the CPU (real JPEGs, equal worker counts, rounds interleaved so that other load slows all of them alike):
    PYTHONPATH=src python benchmarks/data.py --images /data/pets/images
On a CUDA machine (generated JPEGs if no folder is given; a ViT-B/16 step on real and on synthetic data, for several
numbers of worker processes and shares of the images decoded on the device):
    PYTHONPATH=src python benchmarks/data.py --cuda --compile --cells 15:0,14:0.4,12:0.6,0:1
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrine.checkpoints.libraries import import_installed
from vitrine.data.augmenting.augment import Augment, augment
from vitrine.data.loading.loader import Batch, Loader
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.sources.opening import open_source
from vitrine.models import create_model
from vitrine.models.kernels import use_kernels

CPU_BATCH, CUDA_BATCH = 64, 256
AREA = (0.05, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of JPEGs, flat or by class")
    parser.add_argument("--count", type=int, default=1500, help="images of one round")
    parser.add_argument("--rounds", type=int, help="3, in the CUDA mode 2")
    parser.add_argument("--workers", default="0,1,2")
    parser.add_argument("--interpolation", choices=("bilinear", "bicubic"), default="bilinear")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--batch", type=int, help="images per batch [default: 64; 256 in the CUDA mode]")
    parser.add_argument("--size", type=int, default=224, help="image size in pixels")
    parser.add_argument(
        "--steps", type=int, default=30, help="steps of the CUDA mode that count, by cell and round"
    )
    parser.add_argument("--cells", default="15:0,14:0.4,12:0.6,0:1", help="processes:share of the CUDA mode")
    parser.add_argument("--compile", action="store_true", help="compile the model of the CUDA mode")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.cuda else 3)
    options.batch = options.batch or (CUDA_BATCH if options.cuda else CPU_BATCH)
    with tempfile.TemporaryDirectory() as folder:
        root = class_folders(options.images, Path(folder), count=options.count)
        figures = on_cuda(root, options) if options.cuda else on_cpu(root, options)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1))


def class_folders(images: Path | None, folder: Path, *, count: int) -> Path:
    """Link `count` images into class folders (by the first letters of their names), or generate some."""
    root = folder / "set"
    if images is None:
        make_jpegs(root, count=count)
        return root
    files = sorted(itertools.chain(images.rglob("*.jpg"), images.rglob("*.JPEG")))
    for file in files[:: max(1, len(files) // count)][:count]:
        place = root / file.name.rpartition("_")[0]
        place.mkdir(parents=True, exist_ok=True)
        (place / file.name).symlink_to(file.resolve())
    return root


def make_jpegs(root: Path, *, count: int) -> None:
    """Write pictures of 375 x 500 with detail at every scale, about 100 kB each like photos."""

    def make(number: int) -> None:
        generator = np.random.default_rng(number)
        height, width = (375, 500) if number % 3 else (500, 375)
        picture = np.zeros((height, width, 3), dtype=np.float32)
        for cells in (4, 16, 64, 250):
            noise = generator.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
            larger = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
            picture += np.asarray(larger, dtype=np.float32) * cells**-0.2
        picture = 255 * (picture - picture.min()) / (picture.max() - picture.min())
        place = root / f"class{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.astype(np.uint8)).save(place / f"{number:05d}.jpg", quality=95)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, range(count)))


def ours(root: Path, options: argparse.Namespace, *, workers: int, kind: str = "threads") -> Iterator[int]:
    view = TrainView(size=(options.size, options.size), area=AREA, interpolation=options.interpolation)
    source = open_source(root)
    with Loader(source, view, batch_size=options.batch, num_workers=workers, worker_kind=kind) as loader:  # type: ignore[arg-type]
        for batch in loader.training_batches(stop_step=len(source) // options.batch):
            yield len(batch.images)


def timms(root: Path, options: argparse.Namespace, *, workers: int) -> Iterator[int]:
    data = import_installed("timm.data")
    loader = data.create_loader(
        data.ImageDataset(str(root)),
        input_size=(3, options.size, options.size),
        batch_size=options.batch,
        is_training=True,
        scale=AREA,
        color_jitter=0.0,
        interpolation=options.interpolation,
        num_workers=workers,
        persistent_workers=False,
        device=torch.device("cpu"),
    )
    # timm's inner loader: uint8 batches by its fast collate, before it normalises them, like ours.
    for images, _ in loader.loader:
        yield len(images)


def torchvisions(root: Path, options: argparse.Namespace, *, workers: int) -> Iterator[int]:
    datasets, transforms = (
        import_installed("torchvision.datasets"),
        import_installed("torchvision.transforms"),
    )
    mode = transforms.InterpolationMode(options.interpolation)
    steps = transforms.Compose(
        [
            transforms.RandomResizedCrop(options.size, scale=AREA, interpolation=mode),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),  # uint8, which is faster than its usual floats
        ]
    )
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(str(root), steps),
        batch_size=options.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
    )
    for images, _ in loader:
        yield len(images)


def on_cpu(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    torch.set_num_threads(1)
    for workers in map(int, options.workers.split(",")):
        systems: dict[str, Callable[[], Iterator[int]]] = {
            "vitrine": partial(ours, root, options, workers=workers),
            "timm": partial(timms, root, options, workers=workers),
            "torchvision": partial(torchvisions, root, options, workers=workers),
        }
        if workers:
            systems["vitrine, processes"] = partial(ours, root, options, workers=workers, kind="processes")
        rates: dict[str, list[float]] = {name: [] for name in systems}
        costs: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, system in systems.items():
                before = cpu_seconds()
                rates[name].append(rate(system()))
                costs[name].append((cpu_seconds() - before) / options.count)
        figures[f"{workers} workers"] = {"images/s": rates, "CPU seconds per image": costs}
        for name, found in rates.items():
            # Compared by round: other load slows all of them alike.
            ratio = statistics.median(a / b for a, b in zip(rates["vitrine"], found, strict=True))
            saved = statistics.median(b / a for a, b in zip(costs["vitrine"], costs[name], strict=True))
            times = (
                f"; ours: {ratio:.2f} times the rate, {saved:.2f} times less CPU" if name != "vitrine" else ""
            )
            cost = f"{1000 * statistics.median(costs[name]):.2f} ms of CPU per image"
            spread = f"{min(found):.0f} to {max(found):.0f}"
            middle = statistics.median(found)
            print(
                f"{workers} workers  {name:19s} {middle:4.0f} images/s ({spread}), {cost}{times}", flush=True
            )
    return figures


def cpu_seconds() -> float:
    """CPU time of this process and of finished workers: a busy machine hardly changes it."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def rate(batches: Iterator[int], *, uncounted: int = 2) -> float:
    """Images per second after the first batches: starting processes is not counted."""
    images, start = 0, 0.0
    for number, count in enumerate(batches):
        if number == uncounted - 1:
            start = time.perf_counter()
        elif number >= uncounted:
            images += count
    return images / (time.perf_counter() - start)


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
        step = training_step(device, compiled=options.compile)
        ready = (
            torch.randn(options.batch, 3, options.size, options.size, device=device, dtype=torch.bfloat16),
            torch.full((options.batch, 1000), 1e-3, device=device),
        )
        step_rate(step, itertools.repeat(ready, 14))
        figures |= parts_alone(loaders, source, view, strong, options)

        def synthetic() -> float:
            return step_rate(step, itertools.repeat(ready, options.steps + 12))[0]

        def from_files(name: str, how: Augment) -> tuple[float, float]:
            return step_rate(step, inputs(loaders[name].training_batches(stop_step=options.steps + 12), how))

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
                f"with RandAugment and mixup, round {number}: synthetic {bare:.0f}, a resident batch augmented anew "
                f"{made:.0f}, files {real:.0f} images/s: {100 * real / bare:.1f} % and {100 * real / made:.1f} %",
                flush=True,
            )
    return figures


def inputs(batches: Iterable[Batch], how: Augment) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Augment batches and convert them to the model's input."""
    for batch in batches:
        pixels, targets = augment(
            batch.images, batch.labels, batch.rows, config=how, num_classes=1000, seed=0
        )
        yield Preprocess(size=pixels.shape[-2:]).normalise(pixels, dtype=torch.bfloat16), targets


def parts_alone(
    loaders: dict[str, Loader], source: Any, view: TrainView, how: Augment, options: argparse.Namespace
) -> dict[str, float]:
    """Time each loader without a model, nvJPEG with the cut, and the augmentation of one batch."""
    found: dict[str, float] = {}
    for name, loader in loaders.items():
        batches = inputs(loader.training_batches(stop_step=options.steps + 20), Augment())
        found[name] = rate((len(images) for images, _ in batches), uncounted=10)
        print(f"files to bf16 batches, no model, {name}: {found[name]:.0f} images/s", flush=True)
        batch = next(loader.training_batches())
    found["nvJPEG and cut"], by_cpu = nvjpeg_rate(source, view, batch=options.batch)
    print(
        f"nvJPEG and cut, one thread, files in memory: {found['nvJPEG and cut']:.0f} images/s, "
        f"{by_cpu} of {options.batch} left to the CPU",
        flush=True,
    )
    for name, chosen in (("crop and flip only", Augment()), ("RandAugment and mixup", how)):
        times = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        for number, _ in enumerate(inputs(itertools.repeat(batch, 13), chosen)):
            if number in (2, 12):
                times[number == 12].record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        found[f"{name}, ms"] = times[0].elapsed_time(times[1]) / 10  # type: ignore[no-untyped-call]
        print(
            f"{name} and to bf16: {found[f'{name}, ms']:.2f} ms per batch on the device, no model", flush=True
        )
    return found


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


def training_step(device: torch.device, *, compiled: bool) -> Callable[[torch.Tensor, torch.Tensor], None]:
    model = create_model("ViT-B/16", num_classes=1000).to(device)
    use_kernels(model, device=device, precision="bf16")  # as training does
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


if __name__ == "__main__":
    main()
