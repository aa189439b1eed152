"""Training step of ViT-B/16 (forward, backward, clip, AdamW) beside timm's, interleaved in one run.

    PYTHONPATH=src python benchmarks/train_step.py --batch-size 256

Needs a CUDA device and timm. Synthetic images; bf16 autocast, fp32 weights, fused AdamW on both sides.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from vitrine.models import create_model
from vitrine.models.cost import TRAINING_FLOPS_PER_MAC, cost_of
from vitrine.objectives.classification import classification_loss
from vitrine.runtime.processes import Processes
from vitrine.runtime.rate import measured_matmul_rate
from vitrine.training.config import TrainingConfig
from vitrine.training.optimizer import make_optimizer
from vitrine.training.step import StepState, forward_backward, update

TIMM_NAMES = {
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-L/16": "vit_large_patch16_224",
}
Step = Callable[[], object]


def our_step(name: str, images: torch.Tensor, labels: torch.Tensor) -> Step:
    model = create_model(name).cuda().train()
    compiled = torch.compile(model)
    config = TrainingConfig(optimizer="adamw", weight_decay=0.1)
    optimizer = make_optimizer(model, config)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    state = StepState(micro_batch=len(images), bad=torch.zeros((), device="cuda"))

    def loss_of(
        module: nn.Module, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return classification_loss(module(parts[0]), parts[1]), {}

    def step() -> object:
        loss, _ = forward_backward(
            compiled, (images, labels), loss_of=loss_of, state=state,
            autocast=functools.partial(torch.autocast, "cuda", dtype=torch.bfloat16), processes=Processes(),
        )  # fmt: skip
        return update(model, optimizer, loss=loss, clip_norm=1.0, state=state, processes=Processes())

    return step


def timm_step(name: str, images: torch.Tensor, labels: torch.Tensor, *, is_compiled: bool) -> Step:
    import timm

    model = timm.create_model(TIMM_NAMES[name]).cuda().train()
    forward = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step() -> object:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def seconds_of(step: Step, *, repeats: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-B/16", choices=TIMM_NAMES)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="time timm without compilation too")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    images = torch.randn(options.batch_size, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (options.batch_size,), device="cuda")
    steps = {
        "vitrine compiled": our_step(options.model, images, labels),
        "timm compiled": timm_step(options.model, images, labels, is_compiled=True),
    }
    if options.eager:
        steps["timm eager"] = timm_step(options.model, images, labels, is_compiled=False)
    memory = {}
    for name, step in steps.items():
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        memory[name] = (torch.cuda.max_memory_allocated() - held) / 2**30
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(options.rounds):
        for name, step in steps.items():
            best[name] = min(best[name], seconds_of(step, repeats=options.repeats))
    rate, device = measured_matmul_rate("bf16")
    flops = TRAINING_FLOPS_PER_MAC * cost_of(create_model(options.model).config).macs * options.batch_size
    rows = {
        name: {
            "images_per_second": round(options.batch_size / seconds, 1),
            "milliseconds": round(1000 * seconds, 2),
            "share_of_matmul_rate": round(flops / seconds / rate, 3),
            "working_gib": round(memory[name], 2),
        }
        for name, seconds in best.items()
    }
    result = {"device": device, "torch": torch.__version__, "matmul_tflops": round(rate / 1e12, 1), **rows}
    result["ratio_to_timm_compiled"] = round(best["timm compiled"] / best["vitrine compiled"], 3)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
