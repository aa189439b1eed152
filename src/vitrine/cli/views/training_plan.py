"""How the plan of a training run is shown, before it starts."""

from collections.abc import Iterator

from vitrine.cli.lines import Line, input_text
from vitrine.runs.plan import RunPlan
from vitrine.spelling import counted, duration


def plan_lines(plan: RunPlan) -> Iterator[Line]:
    """Show the data, model and settings of a run, with its time and memory."""
    training = plan.training
    yield (
        f"Plan: {plan.model}, {plan.num_parameters:,} parameters, {aim_of(plan)}, "
        f"{input_text(plan.image_size, plan.max_patches, packed_attention=plan.packed_attention)}"
    )
    images = ", ".join(f"{count:,} {name}" for name, count in plan.num_images.items())
    is_spread = plan.is_evaluated and training.evaluate_every
    evaluated = f", evaluated every {training.evaluate_every:,} steps" if is_spread else ""
    yield (
        f"  {images} images; {counted(training.total_steps, 'step')} of {training.batch_size} ({plan.epochs:.3g} "
        f"epochs){evaluated}; {training.optimizer} at {training.lr:g}, warm-up {training.warmup_steps:,}, "
        f"{training.decay} decay"
    )
    yield from phase_lines(plan)
    processes = f"{plan.num_processes} processes with " if plan.num_processes > 1 else ""
    device = f"{processes}{'the CPU' if plan.device == 'cpu' else plan.device} in {plan.precision}"
    left = training.total_steps - plan.done_steps
    remaining = f"; {counted(left, 'step')} left" if plan.done_steps else ""
    yield f"  on {device}, {memory_of(plan)}; {time_of(plan)}{remaining}; to {plan.folder}"


def phase_lines(plan: RunPlan) -> Iterator[Line]:
    """Show the phases of a run, each with the settings that differ from the whole."""
    for phase, steps, cost in plan.phases:
        settings = [] if phase.size is None else [f"{phase.size} px"]
        if phase.patches < 1:
            settings.append(f"{phase.patches:.0%} of the patches")
        if phase.hardest < 1:
            settings.append(f"backward on the hardest {phase.hardest:.0%}")
        described = ", ".join(settings) or "whole images"
        yield f"  until {phase.until:.0%}: {described}; {counted(steps, 'step')}, each {cost:.2f} of a whole one"


def time_of(plan: RunPlan) -> str:
    """Write how long the run will take, with all networks of a cross-validated one."""
    if plan.num_networks == 1:
        return f"about {duration(plan.seconds)}"
    return (
        f"about {duration(plan.num_networks * plan.seconds)} for {plan.num_networks} networks like this one, "
        f"{duration(plan.seconds)} if the first is no better than the closed form"
    )


def aim_of(plan: RunPlan) -> str:
    """Describe the classes or the objective, and the weights that are trained."""
    aim = f"objective {plan.objective}"
    if plan.num_classes:
        aim = f"{'a new head for ' if plan.has_new_head else ''}{plan.num_classes} classes"
        if plan.trains_head_only:
            aim += " (only the head is trained)"
        elif plan.training.lora_rank is not None:
            aim += f" (adapters of rank {plan.training.lora_rank}: {share_trained(plan)})"
        elif plan.training.trains == "biases":
            aim += f" (biases and head: {share_trained(plan)})"
        elif plan.frozen_blocks < 0:
            aim += f" (all but the last {counted(-plan.frozen_blocks, 'block')} frozen)"
        elif plan.frozen_blocks:
            aim += f" (patch embedding and {counted(plan.frozen_blocks, 'block')} frozen)"
    if plan.teacher is not None and plan.teacher_size is not None:
        aim += f", from the teacher {plan.teacher} at {'x'.join(map(str, plan.teacher_size))} px"
    return aim


def share_trained(plan: RunPlan) -> str:
    """Write how many parameters are trained."""
    return f"{plan.num_trained:,} of {plan.num_parameters:,} parameters are trained"


def memory_of(plan: RunPlan) -> str:
    """Write the predicted memory of a step."""
    each = " on each" if plan.num_processes > 1 else ""
    times = f", {plan.passes_per_step} times per step" if plan.passes_per_step > 1 else ""
    words = f"about {gib(plan.step_bytes)} for {counted(plan.micro_batch, 'image')} at a time{each}{times}"
    if plan.device_bytes is not None and plan.step_bytes > plan.device_bytes:
        words += (
            f" (the device has {gib(plan.device_bytes)}: fewer images at a time are tried until they fit)"
        )
    return words


def gib(num_bytes: float) -> str:
    """Write a number of bytes."""
    size = num_bytes / 2**30
    return f"{size:.1f} GiB" if size >= 0.1 else f"{max(num_bytes / 2**20, 1):.0f} MiB"
