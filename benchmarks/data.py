"""Time data loading, files to batches: Vitrine, timm's loader and torchvision's ImageFolder in one run.

On the CPU (real JPEGs, equal worker counts, rounds interleaved so that other load slows all of them alike):
    PYTHONPATH=src python benchmarks/data.py --images /data/pets/images
On a CUDA machine (generated JPEGs if no folder is given; a ViT-B/16 step on real and on synthetic data, for several
numbers of worker processes and shares of the images decoded on the device):
    PYTHONPATH=src python benchmarks/data.py --cuda --compile --cells 15:0,14:0.4,12:0.6,0:1
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts.data_on_cuda import on_cuda, rate
from PIL import Image

from vitrine.checkpoints.libraries import import_installed
from vitrine.data.loading.loader import Loader
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.sources.opening import open_source

CPU_BATCH, CUDA_BATCH = 64, 256
AREA = (0.05, 1.0)
# The resolution of the clock of processor time, in seconds: a toy run may take less.
TICK = 0.01


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
    parser.add_argument(
        "--precision", default="bf16", choices=("bf16", "fp8"), help="of the CUDA mode's model"
    )
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
        for name, own_rates in rates.items():
            # Compared by round: other load slows all of them alike.
            ratio = statistics.median(a / b for a, b in zip(rates["vitrine"], own_rates, strict=True))
            saved = statistics.median(
                b / max(a, TICK) for a, b in zip(costs["vitrine"], costs[name], strict=True)
            )
            times = (
                f"; ours: {ratio:.2f} times the rate, {saved:.2f} times less CPU" if name != "vitrine" else ""
            )
            cost = f"{1000 * statistics.median(costs[name]):.2f} ms of CPU per image"
            spread = f"{min(own_rates):.0f} to {max(own_rates):.0f}"
            middle = statistics.median(own_rates)
            print(
                f"{workers} workers  {name:19s} {middle:4.0f} images/s ({spread}), {cost}{times}", flush=True
            )
    return figures


def cpu_seconds() -> float:
    """CPU time of this process and of finished workers: a busy machine hardly changes it."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
