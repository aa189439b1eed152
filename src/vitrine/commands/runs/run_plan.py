"""What is said before the first step of a run: model, head, size, data, batch, rate, precision, memory, time."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from vitrine.commands.runs.training_run import Setting
    from vitrine.models.memory import Demand
    from vitrine.runtime.processes import Processes
    from vitrine.training.config import TrainingConfig

FP32 = 4  # bytes


def plan_of(setting: "Setting", processes: "Processes", *, seconds: float, done: int = 0) -> str:
    """Say what will be done, on what, and what that takes."""
    from vitrine.commands.runs.expected_time import about

    t, config = setting.recipe.training, setting.model.config
    counts = ", ".join(f"{len(source):,} {name}" for name, source in setting.splits.items())
    epochs = t.total_steps * t.batch_size / len(setting.splits["train"])
    judged = f", judged every {t.evaluate_every:,}" if t.evaluate_every and "val" in setting.splits else ""
    left = f"; {t.total_steps - done:,} steps left" if done else ""
    return "\n".join(
        [
            f"Plan: {setting.recipe.model or 'the model'}, "
            f"{sum(p.numel() for p in setting.model.parameters()):,} parameters, {aim_of(setting)}, "
            f"{'x'.join(map(str, config.image_size))} px",
            f"  {counts} images; {t.total_steps:,} steps of {t.batch_size} ({epochs:.3g} epochs){judged}; "
            f"{t.optimizer} at {t.lr:g}, warm-up {t.warmup_steps:,}, {t.decay} decay",
            f"  on {device_in_words(setting, processes)}, {memory_in_words(setting, processes)}; "
            f"{about(seconds)}{left}; to {setting.folder}",
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
            aim += f" (the embedding and {training.frozen_blocks} blocks stay as they are)"
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
    training, world_size = setting.recipe.training, processes.world_size
    batch = training.micro_batch or max(training.batch_size // world_size, 1)
    memory = demand_of(setting, device=processes.device.type).memory(
        micro_batch=math.ceil(batch * setting.recipe.passes(setting.model.config)),
        shards=world_size if setting.shard else 1,
        checkpointing=setting.model.config.activation_checkpointing,
    )
    where = " on each" if world_size > 1 else ""
    return f"about {memory.total / 2**30:.1f} GiB for {batch} images at a time{where}"


def demand_of(setting: "Setting", *, device: str) -> "Demand":
    """Reckon what the memory of a step follows from."""
    from vitrine.models.cost import cost_of
    from vitrine.models.memory import Demand
    from vitrine.training.config import is_bf16

    training = setting.recipe.training
    return Demand(
        cost=cost_of(setting.model.config),
        states=states_of(training),
        bytes_kept=2 if is_bf16(training.precision, device=device) else 4,
    )


def states_of(training: "TrainingConfig") -> int:
    """Count the numbers that the optimizer keeps for each weight."""
    return 1 if training.optimizer == "sgd" else 2


def require_room(setting: "Setting", module: "nn.Module") -> None:
    """Refuse a run whose first checkpoint would not fit on the disk, before hours are spent on it."""
    import shutil

    from vitrine.errors import CheckpointError

    training = setting.recipe.training
    states = states_of(training) + (training.average_decay is not None)
    weights = sum(parameter.numel() for parameter in module.parameters())
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    needed = FP32 * (weights + states * trained)
    free = shutil.disk_usage(setting.folder).free
    if free < needed:
        raise CheckpointError(
            f"{setting.folder} has {free / 1e9:.2f} GB free and a checkpoint needs {needed / 1e9:.2f} GB; make room, "
            "or write elsewhere with --out"
        )
