"""Compare the loss curves of fp32, bf16 and fp8 over the same batches and several seeds.

    PYTHONPATH=src python benchmarks/loss_curves.py CIFAR10 --steps 1000 --seeds 3 [--out curves.json]

CIFAR10 is the folder of the data set's binary files. ViT-S/4 at 32 px, AdamW, warm-up and cosine decay; a seed fixes
weights and data order for all precisions. At several steps it prints each precision's loss (mean over 100 steps and
over seeds) and its distance from fp32's in units of the standard deviation over fp32's own seeds.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from vitrine.data.loading.resident import pixels_of
from vitrine.data.sources.opening import open_source
from vitrine.models import create_model
from vitrine.models.kernels import use_kernels
from vitrine.training.optimizer import learning_rate

PEAK, WARMUP = 5e-4, 100
PRECISIONS = ("fp32", "bf16", "fp8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="ViT-S/4")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument(
        "--smoothed", type=int, default=100, help="steps that each printed loss is the mean of"
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="no torch.compile")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    images, labels = on_device(options.data, torch.device(options.device))
    curves: dict[str, list[list[float]]] = {}
    for precision in options.precisions.split(","):
        began = time.perf_counter()
        curves[precision] = [
            curve(images, labels, precision=precision, seed=seed, options=options)
            for seed in range(options.seeds)
        ]
        print(f"{precision}: {time.perf_counter() - began:.1f} s", flush=True)
    if options.out:
        options.out.write_text(json.dumps(curves) + "\n")
    print(table(curves, steps=options.steps, smoothed=options.smoothed), flush=True)


def on_device(place: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all training images as bytes and their labels."""
    source = open_source(place, split="train", val_fraction=0)
    pixels, labels = pixels_of(source), torch.from_numpy(source.labels).long()
    if pixels is None or len(pixels) != len(labels):
        raise SystemExit(f"{place} is not a data set in CIFAR's binary format or IDX")
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(device), labels.to(device)


def curve(
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    precision: str,
    seed: int,
    options: argparse.Namespace,
) -> list[float]:
    torch.manual_seed(seed)
    device, steps, batch_size = images.device, options.steps, options.batch_size
    torch.backends.cuda.matmul.allow_tf32 = False
    model = create_model(options.model, image_size=32, num_classes=10).to(device).train()
    use_kernels(model, device=device, precision=precision)
    forward = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.05, fused=True)
    order = torch.Generator(device).manual_seed(seed)
    losses = torch.zeros(steps, device=device)
    for step in range(steps):
        rows = torch.randint(len(images), (batch_size,), generator=order, device=device)
        flip = torch.rand(batch_size, 1, 1, 1, generator=order, device=device) < 0.5
        batch = images[rows].float() / 127.5 - 1
        batch = torch.where(flip, batch.flip(-1), batch)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                step, peak=PEAK, total_steps=steps, warmup_steps=WARMUP, decay="cosine"
            )
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision != "fp32"):
            loss = nn.functional.cross_entropy(forward(batch).float(), labels[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses[step] = loss.detach()
    return losses.tolist()


def table(curves: dict[str, list[list[float]]], *, steps: int, smoothed: int) -> str:
    """Return one Markdown row for every fifth of the steps."""
    lines = ["| step | " + " | ".join(f"{name} (distance in spreads of fp32)" for name in curves) + " |"]
    lines.append("|---" * (1 + len(curves)) + "|")
    for end in range(max(steps // 5, smoothed), steps + 1, max(steps // 5, smoothed)):
        means = {
            name: [statistics.mean(one[end - smoothed : end]) for one in of_seeds]
            for name, of_seeds in curves.items()
        }
        base = means.get("fp32", next(iter(means.values())))
        spread = (statistics.stdev(base) if len(base) > 1 else 0.0) or float("nan")
        cells = [
            f"{statistics.mean(of):.4f} ({(statistics.mean(of) - statistics.mean(base)) / spread:+.2f})"
            for of in means.values()
        ]
        lines.append(f"| {end} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
