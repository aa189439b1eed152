"""Train everything, adapters (LoRA), biases, the last blocks or the head: accuracy, time, memory, size on disk.

    python benchmarks/partial_training.py packs --model dinov2 --jobs 5 --minutes 4 --out partial.jsonl

DATA is a folder with train/ and test/ of class folders, or a folder of packs (.npz: bytes of photos, their sizes,
labels and split), which are unpacked beside --out. Every arm is `vitrine finetune` with its defaults, measured on the
test pictures; each run is a line of --out, so that an interrupted benchmark continues. `--steps-of ViT-L/16` also
measures a step of full fine-tuning and of LoRA on synthetic pictures: time and peak memory.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrine
from vitrine.models import create_model
from vitrine.models.lora import add_adapters
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.config import TrainingConfig
from vitrine.training.optimizer import make_optimizer

ARMS: dict[str, dict[str, Any]] = {
    "all": {},
    "lora-16": {"lora": 16},
    "lora-16-at-3e-4": {"lora": 16, "lr": 3e-4},
    "lora-16-at-3e-3": {"lora": 16, "lr": 3e-3},
    "lora-4": {"lora": 4},
    "biases-at-1e-3": {"biases": True, "lr": 1e-3},
    "last-2-blocks": {"freeze": -2},
    "head": {"probe": True},
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", type=Path)
    parser.add_argument("--model", default="box")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="start no run after this")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps-of", dest="steps_of")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("partial-training.jsonl"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(json.dumps(trained(options.data[0], options.one, options)))
        return
    if options.steps_of:
        for row in steps_of(options.steps_of, batch_size=options.batch_size, device=options.device):
            keep(row, options.out)
    began, done = time.monotonic(), {(row["data"], row["arm"]) for row in read(options.out) if "data" in row}
    folders = [folder for data in options.data for folder in unpacked(data, options.out.parent)]
    wanted = [(folder, arm) for arm in options.arms.split(",") for folder in folders]

    def run(job: tuple[Path, str]) -> None:
        if time.monotonic() - began < 60 * options.minutes:
            keep(trained(*job, options) if options.jobs == 1 else apart(*job, options), options.out)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, [(folder, arm) for folder, arm in wanted if (folder.name, arm) not in done]))
    show(read(options.out))


def apart(data: Path, arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train one arm in a process of its own, so that several share a device."""
    command = [
        sys.executable,
        __file__,
        str(data),
        "--one",
        arm,
        "--model",
        options.model,
        "--device",
        options.device,
    ]
    command += ["--workers", str(options.workers), "--out", str(options.out)]
    for name in ("steps", "size"):
        if getattr(options, name) is not None:
            command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"data": data.name, "arm": arm, "error": done.stderr[-400:]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def trained(data: Path, arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train one arm and evaluate it on the test pictures."""
    run = options.out.parent / "runs" / f"{data.name}-{arm}"
    began = time.monotonic()
    result = vitrine.finetune(
        data, model=options.model, out=run, steps=options.steps, size=options.size, device=options.device,
        workers=options.workers, overwrite=True, **ARMS[arm],
    )  # fmt: skip
    seconds = time.monotonic() - began
    evaluated = vitrine.evaluate(
        run,
        data,
        split="test",
        out=run / "test",
        device=options.device,
        workers=options.workers,
        overwrite=True,
    )
    start = result.start.get("accuracy")
    return {
        "data": data.name,
        "arm": arm,
        "accuracy": None if evaluated.top1 is None else evaluated.top1.value,
        "best_step": result.best_step,
        "steps": result.steps,
        "held_out_start": start,
        "held_out": result.accuracy,
        "seconds": round(seconds, 1),
        "training_seconds": round(result.seconds, 1),
        "memory_gib": most_memory(run),
        "saved_mb": None if result.adapter is None else round(size_of(result.adapter), 2),
    }


def most_memory(run: Path) -> float | None:
    """Return the peak memory of a run's training in GiB; None on a CPU."""
    return max(
        (record["memory_gib"] for record in RunFolder(run).read_metrics() if "memory_gib" in record),
        default=None,
    )


def size_of(folder: Path) -> float:
    """Return the size of a folder's files in MB."""
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def unpacked(data: Path, scratch: Path) -> Iterator[Path]:
    """Yield folders of photos, written from packs where `data` holds those."""
    packs = sorted(data.glob("*.npz"))
    if not packs:
        yield data
    for pack in packs:
        folder = scratch / "photos" / pack.stem
        if not folder.exists():
            with np.load(pack) as content:
                ends = np.cumsum(content["sizes"])
                photos, labels, split = content["bytes"], content["labels"], content["split"]
                for number, (end, size) in enumerate(zip(ends, content["sizes"], strict=True)):
                    name = f"{labels[number]:03d}"
                    file = folder / ("test" if split[number] else "train") / name / f"{number:05d}.webp"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(photos[end - size : end].tobytes())
        yield folder


def steps_of(name: str, *, batch_size: int, device: str) -> Iterator[dict[str, Any]]:
    """Measure a step of full fine-tuning and of LoRA in bf16: milliseconds, the median of 20, and peak memory."""
    where = torch.device(
        "cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu")
    )
    for arm, rank in (("all", None), ("lora-16", 16)):
        model = create_model(name, num_classes=100).to(where)
        if rank is not None:
            add_adapters(model, rank=rank)
            model.to(where)
        optimizer = make_optimizer(model, TrainingConfig(lora_rank=rank))
        images = torch.randn(batch_size, 3, *model.config.image_size, device=where)
        labels = torch.randint(0, 100, (batch_size,), device=where)
        times = []
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for _ in range(25 if where.type == "cuda" else 2):
            began = time.perf_counter()
            with torch.autocast(where.type, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
            times.append(1e3 * (time.perf_counter() - began))
        peak = torch.cuda.max_memory_allocated() / 2**30 if where.type == "cuda" else None
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        yield {
            "model": name, "arm": arm, "batch": batch_size, "trained": trained, "peak_gib": peak,
            "ms_per_step": round(float(np.median(times[-20:])), 1),
        }  # fmt: skip
        del model, optimizer, loss


def keep(row: dict[str, Any], file: Path) -> None:
    """Append a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def read(file: Path) -> list[dict[str, Any]]:
    """Read the lines of earlier runs."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def show(rows: list[dict[str, Any]]) -> None:
    """Print test accuracy by arm and data set, and a step's cost."""
    runs = [row for row in rows if row.get("accuracy") is not None]
    names = list(dict.fromkeys(row["data"] for row in runs))
    print("arm".ljust(18), *(name.rjust(8) for name in names), "  seconds  GiB  MB saved")
    for arm in dict.fromkeys(row["arm"] for row in runs):
        own = {row["data"]: row for row in runs if row["arm"] == arm}
        cells = [f"{own[name]['accuracy']:8.1%}" if name in own else " " * 8 for name in names]
        seconds = sum(row["training_seconds"] for row in own.values())
        memory = max((row["memory_gib"] or 0 for row in own.values()), default=0)
        print(
            arm.ljust(18), *cells, f"{seconds:9.0f} {memory:5.1f}", next(iter(own.values()))["saved_mb"] or ""
        )
    for row in rows:
        if "ms_per_step" in row:
            print(row)


if __name__ == "__main__":
    main()
