"""Training step (forward, backward, clip, AdamW) beside timm's, interleaved in one run.

    PYTHONPATH=src python benchmarks/train_step.py --model ViT-B/16 --batch-size 256 [--profile]

Needs a CUDA device and timm. Synthetic images; all compiled, fp32 weights, fused AdamW, bf16 autocast. Ours three
times: without kernels of our own, with them, and with them and fp8 (models/kernels); each launched kernel by kernel
and recorded as a CUDA graph, as `training.graphs` does.
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
from vitrine.models.kernels.layers import speed_up
from vitrine.objectives.classification import classification_loss
from vitrine.runtime.processes import Processes
from vitrine.runtime.rate import measured_matmul_rate
from vitrine.training.config import TrainingConfig
from vitrine.training.graphs import WARM_UP_STEPS, ReplayedStep, Taken, on_own_stream, put_rates_in_tensors
from vitrine.training.optimizer import make_optimizer
from vitrine.training.step import Parts, StepState, forward_backward, update

TIMM_NAMES = {
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-L/16": "vit_large_patch16_224",
}
Step = Callable[[], object]


def our_steps(name: str, images: torch.Tensor, labels: torch.Tensor, *, layers: str) -> tuple[Step, Step]:
    """Return a step that is launched and the same one recorded."""
    model = create_model(name).cuda().train()
    if layers != "plain":
        speed_up(model, in_fp8=layers == "fp8")
    compiled = torch.compile(model)
    optimizer = make_optimizer(model, TrainingConfig(optimizer="adamw", weight_decay=0.1))
    put_rates_in_tensors(optimizer, device=images.device)
    for group in optimizer.param_groups:
        group["lr"].fill_(1e-4)
    state = StepState(micro_batch=len(images), bad=torch.zeros((), device="cuda"))

    def loss_of(
        module: nn.Module, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return classification_loss(module(parts[0]), parts[1]), {}

    def take_step(parts: Parts) -> Taken:
        loss, sums = forward_backward(
            compiled, parts, loss_of=loss_of, state=state,
            autocast=functools.partial(torch.autocast, "cuda", dtype=torch.bfloat16), processes=Processes(),
        )  # fmt: skip
        norm = update(model, optimizer, loss=loss, clip_norm=1.0, state=state, processes=Processes())
        return loss, sums, norm

    parts = (images, labels)
    return functools.partial(take_step, parts), functools.partial(ReplayedStep(take_step, state=state), parts)


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


def profiled(step: Step, *, top: int = 45) -> str:
    """Return the kernels of three steps, the longest first: milliseconds a step, calls, name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    found = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    return "".join(
        f"\n  {event.self_device_time_total / 3000:7.3f} ms {event.count / 3:6.0f} x  {event.key[:110]}"
        for event in found[:top]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ViT-B/16", choices=TIMM_NAMES)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--ours", default="plain,kernels,fp8", help="which of our layers")
    parser.add_argument("--eager", action="store_true", help="time timm without compilation too")
    parser.add_argument("--no-timm", action="store_true")
    parser.add_argument("--profile", action="store_true", help="list the kernels of a step")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with on_own_stream(torch.device("cuda")):  # the default stream cannot be recorded
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Time all steps in turn and say how they stand."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    images = torch.randn(options.batch_size, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (options.batch_size,), device="cuda")
    steps: dict[str, Step] = {}
    for layers in filter(None, options.ours.split(",")):
        launched, recorded = our_steps(options.model, images, labels, layers=layers)
        steps |= {f"vitrine, {layers}": launched, f"vitrine, {layers}, recorded": recorded}
    if not options.no_timm:
        steps["timm compiled"] = timm_step(options.model, images, labels, is_compiled=True)
    if options.eager:
        steps["timm eager"] = timm_step(options.model, images, labels, is_compiled=False)
    memory: dict[str, float | None] = {}
    for name, step in steps.items():
        for _ in range(WARM_UP_STEPS + 1):  # the last one is recorded
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        taken = (torch.cuda.max_memory_allocated() - held) / 2**30
        memory[name] = (
            round(taken, 2) if taken else None
        )  # a recorded step keeps what it took when it was launched
        if options.profile:
            print(name, profiled(step), flush=True)
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
            "working_gib": memory[name],
        }
        for name, seconds in best.items()
    }
    result = {"device": device, "torch": torch.__version__, "matmul_tflops": round(rate / 1e12, 1), **rows}
    if "timm compiled" in best:
        result["times_timm_compiled"] = {
            name: round(best["timm compiled"] / seconds, 3) for name, seconds in best.items()
        }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
