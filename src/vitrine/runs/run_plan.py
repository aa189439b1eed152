"""What is said before the first step of a run: model, head, size, data, batch, rate, precision, memory, time."""

import math
from typing import TYPE_CHECKING

from vitrine.spelling import counted, duration

if TYPE_CHECKING:
    from torch import nn

    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes
    from vitrine.training.config import TrainingConfig

FP32 = 4  # bytes


def plan_of(setting: "Setting", processes: "Processes", *, seconds: float, done: int = 0) -> str:
    """Say what will be done, on what, and what that takes."""
    t, config = setting.recipe.training, setting.model.config
    counts = ", ".join(f"{len(source):,} {name}" for name, source in setting.splits.items())
    epochs = t.total_steps * t.batch_size / len(setting.splits["train"])
    judged = f", judged every {t.evaluate_every:,}" if t.evaluate_every and "val" in setting.splits else ""
    left = f"; {counted(t.total_steps - done, 'step')} left" if done else ""
    return "\n".join(
        [
            f"Plan: {setting.recipe.model or 'the model'}, "
            f"{sum(p.numel() for p in setting.model.parameters()):,} parameters, {aim_of(setting)}, "
            f"{'x'.join(map(str, config.image_size))} px",
            f"  {counts} images; {counted(t.total_steps, 'step')} of {t.batch_size} ({epochs:.3g} epochs){judged}; "
            f"{t.optimizer} at {t.lr:g}, warm-up {t.warmup_steps:,}, {t.decay} decay",
            f"  on {device_in_words(setting, processes)}, {memory_in_words(setting, processes)}; "
            f"about {duration(seconds)}{left}; to {setting.folder}",
        ]
    )


def aim_of(setting: "Setting") -> str:
    """Say what is learned."""
    classes = setting.model.config.num_classes
    is_new = setting.verb == "finetune"
    aim = f"by {setting.recipe.objective}"
    if classes:
        aim = f"a new head for {classes} classes" if is_new else f"{classes} classes"
        training = setting.recipe.training
        if training.trains == "head":
            aim += " (the head alone is trained)"
        elif training.frozen_blocks:
            aim += f" (the embedding and {counted(training.frozen_blocks, 'block')} stay as they are)"
    if setting.teacher is not None:
        seen = "x".join(map(str, setting.teacher.preprocess.size))
        aim += f", taught by {setting.teacher.name} at {seen} px"
    return aim


def device_in_words(setting: "Setting", processes: "Processes") -> str:
    """Name the device and what is computed in on it."""
    from vitrine.training.config import is_bf16

    kind = processes.device.type
    precision = setting.recipe.training.precision
    if precision == "auto":
        precision = "bf16" if is_bf16(precision, device=kind) else "fp32"
    many = f"{processes.world_size} processes with " if processes.world_size > 1 else ""
    return f"{many}{'the CPU' if kind == 'cpu' else kind} in {precision}"


def memory_in_words(setting: "Setting", processes: "Processes") -> str:
    """Predict the memory of a step on one device."""
    from vitrine.runs.micro_batches import images_a_process, memory_of_step
    from vitrine.runtime.hardware import memory_of

    share = images_a_process(setting, processes)
    batch = min(setting.recipe.training.micro_batch or share, share)
    needed = memory_of_step(setting, processes, micro_batch=batch)
    where = " on each" if processes.world_size > 1 else ""
    times = f", {math.ceil(share / batch)} times a step" if batch < share else ""
    words = f"about {gib(needed)} for {counted(batch, 'image')} at a time{where}{times}"
    there = memory_of(processes.device)
    if processes.device.type == "cuda" and there is not None and needed > there:
        words += f" (more than the {gib(there)} there are: the images at a time are halved until they fit)"
    return words


def gib(num_bytes: float) -> str:
    """Write a number of bytes for people."""
    size = num_bytes / 2**30
    return f"{size:.1f} GiB" if size >= 0.1 else f"{max(num_bytes / 2**20, 1):.0f} MiB"


def states_of(training: "TrainingConfig") -> int:
    """Count the numbers that the optimizer keeps for each weight."""
    return 1 if training.optimizer == "sgd" else 2


def require_room(setting: "Setting", module: "nn.Module") -> None:
    """Refuse a run whose files would not fit on the disk, before hours are spent on it."""
    import shutil

    from vitrine.errors import CheckpointError
    from vitrine.runtime.files import size_in_words

    training = setting.recipe.training
    weights = sum(parameter.numel() for parameter in module.parameters())
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    averages = weights if training.average_decay is not None else 0
    checkpoint = FP32 * (weights + averages + states_of(training) * trained)
    # The last one, the best where there is any, and the one that is about to take the place of either.
    count = 3 if "val" in setting.splits else 2
    needed = count * checkpoint + FP32 * weights
    free = shutil.disk_usage(setting.folder).free
    if free < needed:
        raise CheckpointError(
            f"{setting.folder} has {size_in_words(free)} free and the run needs {size_in_words(needed)}: {count} "
            f"checkpoints of {size_in_words(checkpoint)}, one of them while it is written, and the model; make room, "
            "or write elsewhere with --out"
        )
