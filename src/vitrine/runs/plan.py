"""The plan of a run before its first step, with its memory and disk space."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from vitrine.errors import CheckpointError, TryOption
from vitrine.models import ModelConfig
from vitrine.models.cost import cost_of
from vitrine.models.memory import Demand
from vitrine.models.packed import packed_attention
from vitrine.recipes.recipe import Recipe
from vitrine.runs.phases import cost_of_phase
from vitrine.runs.records import Execution, RunOutput, StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runtime.devices import is_bf16
from vitrine.runtime.files import size_in_words
from vitrine.runtime.hardware import memory_of
from vitrine.runtime.processes import Processes
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.config import TrainingConfig
from vitrine.training.phases import Phase, steps_of

FP32_BYTES = 4
# Fraction of a machine's memory: the rest is for Python, for images that are read, and for other programs.
SHARE_OF_MACHINE = 0.75


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run, presented before its first step."""

    model: str
    num_parameters: int
    objective: str
    num_classes: int | None
    has_new_head: bool
    trains_head_only: bool
    frozen_blocks: int
    num_trained: int
    """Parameters that are trained."""
    image_size: tuple[int, int]
    max_patches: int | None
    """The maximum number of patches per image, for models that keep the aspect ratio; None for others."""
    packed_attention: str | None
    """How attention inside images of any shape is computed; None for images of one size."""
    teacher: str | None
    teacher_size: tuple[int, int] | None
    num_images: Mapping[str, int]
    """By split."""
    training: TrainingConfig
    epochs: float
    is_evaluated: bool
    device: str
    precision: str
    num_processes: int
    step_bytes: float
    """Predicted memory of a step on one device."""
    device_bytes: float | None
    """Memory of that device, if it is a GPU."""
    micro_batch: int
    passes_per_step: int
    """Number of micro-batches in a process's share of the batch."""
    seconds: float
    """Seconds of this network."""
    phases: tuple[tuple[Phase, int, float], ...]
    """Phases of the run, each with its number of steps and its cost per image relative to a step without phases."""
    num_networks: int
    """Number of networks like this one that the run trains; more than 1 if it cross-validates."""
    done_steps: int
    folder: RunFolder


def plan_of(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
    seconds: float,
    done: int,
) -> RunPlan:
    """Describe a run that is about to start."""
    training, config, device = recipe.training, start.model.config, processes.device
    precision = training.precision
    if precision == "auto":
        precision = "bf16" if is_bf16(precision, device=device.type) else "fp32"
    share = images_per_process(training, processes)
    micro_batch = min(training.micro_batch or share, share)
    teacher = start.teacher
    return RunPlan(
        model=recipe.model or "the model",
        num_parameters=sum(parameter.numel() for parameter in start.model.parameters()),
        objective=recipe.objective.kind,
        num_classes=config.num_classes,
        has_new_head=output.verb == "finetune",
        trains_head_only=training.trains == "head",
        frozen_blocks=training.frozen_blocks,
        num_trained=num_trained(start.model),
        image_size=config.image_size,
        max_patches=start.preprocess.max_patches,
        packed_attention=packed_attention(start.preprocess.max_patches, config, device),
        teacher=None if teacher is None else teacher.name,
        teacher_size=None if teacher is None else teacher.preprocess.size,
        num_images={name: len(source) for name, source in data.splits.items()},
        training=training,
        epochs=training.total_steps * training.batch_size / len(data.train),
        is_evaluated=data.validation is not None,
        device=device.type,
        precision=precision,
        num_processes=processes.world_size,
        step_bytes=step_memory(
            recipe,
            config,
            micro_batch=micro_batch,
            processes=processes,
            shard=execution.shard,
            trained=num_trained(start.model),
            max_patches=start.preprocess.max_patches,
        ),
        device_bytes=memory_of(device) if device.type == "cuda" else None,
        micro_batch=micro_batch,
        passes_per_step=math.ceil(share / micro_batch),
        seconds=seconds,
        phases=tuple(
            (phase, steps, cost_of_phase(config, phase))
            for phase, steps in steps_of(recipe.phases, total_steps=training.total_steps)
        ),
        num_networks=output.num_networks,
        done_steps=done,
        folder=output.folder,
    )


def choose_micro_batch(
    recipe: Recipe,
    config: ModelConfig,
    *,
    processes: Processes,
    shard: bool,
    trained: int | None = None,
    max_patches: int | None = None,
) -> int | None:
    """Return the recipe's micro-batch, or one that is predicted to fit; None means the whole share of the batch.

    Objectives that compare images with each other keep the whole batch.

    The prediction is for a CPU, where running out of memory ends the process, and for sharded runs, where no process
    can try a size alone. Other runs on GPUs return None: the loop halves the micro-batch if memory runs out.
    """
    device = processes.device
    if recipe.training.micro_batch is not None or recipe.objective.compares_images:
        return recipe.training.micro_batch
    if device.type == "cpu":
        # Total, not free memory: a resumed run must add up gradients in the same order.
        machine = memory_of(device)
        available = math.inf if machine is None else SHARE_OF_MACHINE * machine / processes.world_size
    elif device.type == "cuda" and shard and processes.world_size > 1:
        available, _ = torch.cuda.mem_get_info(device)
    else:
        return None
    size = fitting_micro_batch(
        recipe,
        config,
        processes=processes,
        shard=shard,
        available=available,
        trained=trained,
        max_patches=max_patches,
    )
    return None if size == images_per_process(recipe.training, processes) else size


def fitting_micro_batch(
    recipe: Recipe,
    config: ModelConfig,
    *,
    processes: Processes,
    shard: bool,
    available: float,
    trained: int | None = None,
    max_patches: int | None = None,
) -> int:
    """Halve a process's share of the batch until its memory is predicted to fit into `available` bytes."""
    size = images_per_process(recipe.training, processes)

    def needed() -> float:
        return step_memory(
            recipe,
            config,
            micro_batch=size,
            processes=processes,
            shard=shard,
            trained=trained,
            max_patches=max_patches,
        )

    while size > 1 and needed() > available:
        size //= 2
    return size


def images_per_process(training: TrainingConfig, processes: Processes) -> int:
    """Return a process's share of the batch."""
    return max(training.batch_size // processes.world_size, 1)


def step_memory(
    recipe: Recipe,
    config: ModelConfig,
    *,
    micro_batch: int,
    processes: Processes,
    shard: bool,
    trained: int | None = None,
    max_patches: int | None = None,
) -> float:
    """Predict the bytes of a step on one device; `trained` is the number of trained parameters, all by default.

    Images at their own aspect ratio are counted with `max_patches`, the most that a step of them can need.
    """
    is_low = is_bf16(recipe.training.precision, device=processes.device.type)
    demand = Demand(
        cost=cost_of(config, patches=max_patches), states=num_states(recipe.training),
        bytes_kept=2 if is_low else FP32_BYTES, trained=trained,
    )  # fmt: skip
    return demand.memory(
        micro_batch=math.ceil(micro_batch * recipe.objective.images_per_image(config)),
        shards=processes.world_size if shard else 1,
        checkpointing=config.activation_checkpointing,
    ).total


def num_trained(model: nn.Module) -> int:
    """Count the parameters that are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def num_states(training: TrainingConfig) -> int:
    """Count the numbers that the optimizer keeps per weight."""
    return 1 if training.optimizer == "sgd" else 2


def require_disk_space(
    module: nn.Module, training: TrainingConfig, folder: RunFolder, *, has_best: bool
) -> None:
    """Refuse a run whose files would not fit on the disk, before hours are spent on it."""
    weights = sum(parameter.numel() for parameter in module.parameters())
    trained = num_trained(module)
    averages = weights if training.averages else 0
    checkpoint = FP32_BYTES * (weights + averages + num_states(training) * trained)
    # The last one, the one before it, and the one that is being written; the weights of the best, and the model.
    count = 3
    needed = count * checkpoint + (2 if has_best else 1) * FP32_BYTES * weights
    free = shutil.disk_usage(folder.path).free
    if free < needed:
        raise CheckpointError(
            f"{folder} has {size_in_words(free)} free and the run needs {size_in_words(needed)}: {count} checkpoints "
            f"of {size_in_words(checkpoint)} (one is temporary), and weights; free some space",
            advice=[TryOption("out", "to write elsewhere")],
        )
