"""Inference beside timm's, compiled, interleaved in one run.

    PYTHONPATH=src python benchmarks/inference.py --model ViT-B/16 --batches 1,256

Needs a CUDA device and timm. bf16 weights and images on both sides; batches up to 8 are replayed as CUDA graphs
(`--mode` max-autotune tries more products there, on both sides too).
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from train_step import TIMM_NAMES

from vitrine.models import create_model
from vitrine.models.kernels.layers import speed_up

SMALL = 8


def contestants(name: str) -> dict[str, nn.Module]:
    import timm

    models = {
        "vitrine": speed_up(create_model(name)),
        "vitrine, fp8": speed_up(create_model(name), in_fp8=True),
        "timm": timm.create_model(TIMM_NAMES[name]),
    }
    return {key: model.cuda().eval().to(torch.bfloat16) for key, model in models.items()}


def compiled(model: nn.Module, *, batch: int, mode: str) -> Callable[[torch.Tensor], torch.Tensor]:
    forward: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
        model, mode=mode if batch <= SMALL else "default"
    )
    return forward


def seconds_of(
    forward: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, *, repeats: int
) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        forward(images)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-B/16", choices=TIMM_NAMES)
    parser.add_argument("--batches", default="1,256")
    parser.add_argument("--mode", default="reduce-overhead", choices=("reduce-overhead", "max-autotune"))
    parser.add_argument("--only", help="some of the contestants, separated by semicolons")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for batch in map(int, options.batches.split(",")):
        torch._dynamo.reset()
        images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        forwards = {
            name: compiled(model, batch=batch, mode=options.mode)
            for name, model in contestants(options.model).items()
            if not (options.only and name not in options.only.split(";"))
            and not (batch <= SMALL and "fp8" in name)
        }
        best = dict.fromkeys(forwards, float("inf"))
        for forward in forwards.values():
            for _ in range(4):
                forward(images)
        for _ in range(options.rounds):
            for name, forward in forwards.items():
                repeats = 200 if batch <= SMALL else 20
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
