"""Time one training step (forward, backward, clip, AdamW) against timm's, interleaved in one run.

    PYTHONPATH=src python benchmarks/train_step.py --model ViT-B/16 --batch-size 256 [--profile]

Needs timm, and a CUDA device for figures that count. Synthetic images; everything compiled, fp32 weights, fused
AdamW, bf16 autocast. Vitrine runs three times: without its own kernels, with them, and with them and fp8
(models/kernels); each is launched kernel by kernel and, on CUDA, also replayed as a CUDA graph (`training.graphs`).

    PYTHONPATH=src python benchmarks/train_step.py --device cpu --model ViT-Ti/16 --size 32 --batch-size 2 \
        --ours plain --no-compile --rounds 1 --repeats 1        the same code in seconds, as a test runs it
"""

import argparse
import functools
import json
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from vitrine.checkpoints.libraries import import_installed
from vitrine.checkpoints.library_settings import timm_model
from vitrine.models import configure, create_model
from vitrine.models.cost import TRAINING_FLOPS_PER_MAC, cost_of
from vitrine.models.dropout import image_keys
from vitrine.models.kernels.layers import speed_up
from vitrine.objectives.classification import classification_loss
from vitrine.runtime.hardware import measured_matmul_rate
from vitrine.runtime.processes import Processes
from vitrine.training.config import TrainingConfig
from vitrine.training.graphs import (
    WARM_UP_STEPS,
    ReplayedStep,
    Taken,
    can_record,
    on_own_stream,
    put_rates_in_tensors,
)
from vitrine.training.optimizer import make_optimizer
from vitrine.training.step import Parts, StepState, forward_backward, update

TIMM_NAMES = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-L/16": "vit_large_patch16_224",
    "DeiT-III-S/16": "deit3_small_patch16_224",
    "DeiT-III-B/16": "deit3_base_patch16_224",
    "TNT-S": "tnt_s_patch16_224",
    "TNT-B": "tnt_b_patch16_224",
}
Step = Callable[[], object]


def our_steps(images: torch.Tensor, labels: torch.Tensor, *, layers: str, options: Namespace) -> list[Step]:
    """Return a step that is launched kernel by kernel and, on CUDA, the same step replayed as a graph."""
    device = images.device
    model = create_model(options.model, image_size=options.size).to(device).train()
    if layers != "plain":
        speed_up(model, in_fp8=layers == "fp8")
    module = torch.compile(model) if options.compile else model
    optimizer = make_optimizer(model, TrainingConfig(optimizer="adamw", weight_decay=0.1))
    put_rates_in_tensors(optimizer, device=device)
    for group in optimizer.param_groups:
        group["lr"].fill_(1e-4)
    state = StepState(micro_batch=len(images), bad=torch.zeros((), device=device))

    def loss_of(
        module: nn.Module, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return classification_loss(module(parts[0]), parts[1]), {}

    def take_step(parts: Parts) -> Taken:
        loss, sums = forward_backward(
            module, parts, loss_of=loss_of, state=state,
            autocast=functools.partial(torch.autocast, device.type, dtype=torch.bfloat16), processes=Processes(),
        )  # fmt: skip
        norm = update(model, optimizer, loss=loss, clip_norm=1.0, state=state, processes=Processes())
        return loss, sums, norm

    # As in training, each image's key comes last: it decides what dropout and stochastic depth draw.
    parts = (images, labels, image_keys(0, first=0, count=len(images), device=device))
    steps: list[Step] = [functools.partial(take_step, parts)]
    if can_record(device, world_size=1):
        steps.append(functools.partial(ReplayedStep(take_step, state=state), parts))
    return steps


def timm_step(images: torch.Tensor, labels: torch.Tensor, *, is_compiled: bool, options: Namespace) -> Step:
    device = images.device
    model = timm_peer(options).to(device).train()
    forward = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step() -> object:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def timm_peer(options: Namespace) -> nn.Module:
    """Build timm's model of the same shape, of any family that timm has."""
    timm = import_installed("timm")
    if options.model in TIMM_NAMES:
        return timm.create_model(TIMM_NAMES[options.model], img_size=options.size)  # type: ignore[no-any-return]
    config = configure(options.model, image_size=options.size)
    name, arguments = timm_model(config)
    if name is None:
        raise SystemExit(f"timm has no model like {options.model}")
    return timm.create_model(name, num_classes=config.num_classes, **arguments)  # type: ignore[no-any-return]


def synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def seconds_of(step: Step, *, repeats: int) -> float:
    synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    synchronize()
    return (time.perf_counter() - began) / repeats


def profiled(step: Step, *, top: int = 45) -> str:
    """List the kernels of three steps, longest first: milliseconds per step, calls, name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            step()
        synchronize()
    kernels = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    return "".join(
        f"\n  {event.self_device_time_total / 3000:7.3f} ms {event.count / 3:6.0f} x  {event.key[:110]}"
        for event in kernels[:top]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="ViT-B/16", help="any model that timm has as well, such as PVT-v2-B2"
    )
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--size", type=int, default=224, help="image size in pixels")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--ours", default="plain,kernels,fp8", help="which of our layers to time")
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="no torch.compile on either side"
    )
    parser.add_argument("--eager", action="store_true", help="time timm without compilation too")
    parser.add_argument("--no-timm", action="store_true")
    parser.add_argument("--profile", action="store_true", help="list the kernels of a step (CUDA only)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with on_own_stream(torch.device(options.device)):  # the default stream cannot be recorded
        compare(options)


def compare(options: Namespace) -> None:
    """Time every step in every round and print the best times."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    steps = contestants(options)
    memory: dict[str, float | None] = {}
    for name, step in steps.items():
        for _ in range(WARM_UP_STEPS + 1):  # the last one is recorded
            step()
        memory[name] = working_gib(step) if options.device == "cuda" else None
        if options.profile:
            print(name, profiled(step), flush=True)
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(options.rounds):
        for name, step in steps.items():
            best[name] = min(best[name], seconds_of(step, repeats=options.repeats))
    result = rows_of(best, memory, options)
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def contestants(options: Namespace) -> dict[str, Step]:
    images = torch.randn(options.batch_size, 3, options.size, options.size, device=options.device)
    labels = torch.randint(1000, (options.batch_size,), device=options.device)
    steps: dict[str, Step] = {}
    for layers in filter(None, options.ours.split(",")):
        names = (f"vitrine, {layers}", f"vitrine, {layers}, recorded")
        steps |= dict(zip(names, our_steps(images, labels, layers=layers, options=options), strict=False))
    if not options.no_timm and options.compile:
        steps["timm compiled"] = timm_step(images, labels, is_compiled=True, options=options)
    if not options.no_timm and (options.eager or not options.compile):
        steps["timm eager"] = timm_step(images, labels, is_compiled=False, options=options)
    return steps


def working_gib(step: Step) -> float | None:
    """Measure the memory that a step allocates; None for a replayed step, which keeps its memory."""
    synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    synchronize()
    allocated = (torch.cuda.max_memory_allocated() - before) / 2**30
    return round(allocated, 2) if allocated else None


def rows_of(best: dict[str, float], memory: dict[str, float | None], options: Namespace) -> dict[str, object]:
    """Return rates, times, fraction of the machine's matmul rate and memory of every contestant."""
    rate, device = measured_matmul_rate("bf16", device=options.device)
    flops = (
        TRAINING_FLOPS_PER_MAC
        * cost_of(create_model(options.model, image_size=options.size).config).macs
        * options.batch_size
    )
    rows = {
        name: {
            "images_per_second": round(options.batch_size / seconds, 1),
            "milliseconds": round(1000 * seconds, 2),
            "share_of_matmul_rate": round(flops / seconds / rate, 3),
            "working_gib": memory[name],
        }
        for name, seconds in best.items()
    }
    result: dict[str, object] = {
        "device": device, "torch": torch.__version__, "matmul_tflops": round(rate / 1e12, 1), **rows,
    }  # fmt: skip
    for peer in ("timm compiled", "timm eager"):
        if peer in best:
            result[f"times_{peer.replace(' ', '_')}"] = {
                name: round(best[peer] / seconds, 3) for name, seconds in best.items()
            }
    return result


if __name__ == "__main__":
    main()
