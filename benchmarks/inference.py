"""Time inference against timm's, compiled, interleaved in one run.

    PYTHONPATH=src python benchmarks/inference.py --model ViT-B/16 --batches 1,256

Needs timm, and a CUDA device for figures that count. bf16 weights and images on both sides; batches of up to 8 are
replayed as CUDA graphs (`--mode max-autotune` tries more matrix products there, on both sides).

    PYTHONPATH=src python benchmarks/inference.py --device cpu --model ViT-Ti/16 --size 32 --batches 1 \
        --no-compile --rounds 1 --repeats 1                     the same code in seconds, as a test runs it
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from train_step import TIMM_NAMES, synchronize

from vitrine.checkpoints.libraries import import_installed
from vitrine.models import create_model
from vitrine.models.kernels.layers import speed_up

SMALL = 8


def contestants(options: argparse.Namespace) -> dict[str, nn.Module]:
    ours = create_model(options.model, image_size=options.size)
    theirs = import_installed("timm").create_model(TIMM_NAMES[options.model], img_size=options.size)
    models = {"vitrine": ours, "timm": theirs}
    if options.device == "cuda":  # our kernels are Triton's
        fp8 = speed_up(create_model(options.model, image_size=options.size), in_fp8=True)
        models = {"vitrine": speed_up(ours), "vitrine, fp8": fp8, "timm": theirs}
    return {key: model.to(options.device).eval().to(torch.bfloat16) for key, model in models.items()}


def compiled(
    model: nn.Module, *, batch: int, options: argparse.Namespace
) -> Callable[[torch.Tensor], torch.Tensor]:
    if not options.compile:
        return model
    return torch.compile(model, mode=options.mode if batch <= SMALL else "default")


def seconds_of(
    forward: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, *, repeats: int
) -> float:
    synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        forward(images)
    synchronize()
    return (time.perf_counter() - began) / repeats


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-B/16", choices=TIMM_NAMES)
    parser.add_argument("--batches", default="1,256")
    parser.add_argument("--mode", default="reduce-overhead", choices=("reduce-overhead", "max-autotune"))
    parser.add_argument("--only", help="some of the contestants, separated by semicolons")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--repeats", type=int, help="forward passes per round [default: 20; 200 up to 8 images]"
    )
    parser.add_argument("--size", type=int, default=224, help="image size in pixels")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="no torch.compile on either side"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    result: dict[str, object] = {"device": name, "torch": torch.__version__}
    for batch in map(int, options.batches.split(",")):
        torch._dynamo.reset()
        images = torch.randn(
            batch, 3, options.size, options.size, device=options.device, dtype=torch.bfloat16
        )
        forwards = {
            name: compiled(model, batch=batch, options=options)
            for name, model in contestants(options).items()
            if not (options.only and name not in options.only.split(";"))
            and not (batch <= SMALL and "fp8" in name)
        }
        best = dict.fromkeys(forwards, float("inf"))
        for forward in forwards.values():
            for _ in range(4):
                forward(images)
        for _ in range(options.rounds):
            for name, forward in forwards.items():
                repeats = options.repeats or (200 if batch <= SMALL else 20)
                best[name] = min(best[name], seconds_of(forward, images, repeats=repeats))
        result[f"batch {batch}"] = {
            name: {
                "milliseconds": round(1000 * seconds, 3),
                "images_per_second": round(batch / seconds, 1),
                "times_timm": round(best["timm"] / seconds, 3) if "timm" in best else None,
            }
            for name, seconds in best.items()
        }
        print(json.dumps({batch: result[f"batch {batch}"]}), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
