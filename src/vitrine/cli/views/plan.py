"""How `vitrine plan` shows memory and time."""

from collections.abc import Iterator

from vitrine.cli.command_line import option
from vitrine.cli.lines import Line, Table, input_text
from vitrine.jobs.plan import GIVEN, Memory, Plan
from vitrine.spelling import counted, duration

# From here on hours are also shown in days.
DAYS_FROM_HOURS = 72


def lines(plan: Plan) -> Iterator[Line]:
    """Show the run, its memory as asked and as it fits, and its time."""
    shape = input_text(plan.image_size, plan.max_patches)
    shape = f" at {shape}" if plan.max_patches is None else f", {shape}"
    tokens = "" if plan.tokens is None else f", {plan.tokens} tokens"
    yield f"{plan.model}: {plan.params:,} parameters{shape}{tokens}"
    yield (
        f"Batch size {plan.batch_size:,} on {counted(plan.devices, 'device')} with {plan.device_memory:g} GiB each, "
        f"{counted(plan.steps, 'step')}"
    )
    yield f"{'Fits' if plan.fits else 'Does not fit'}: {plan.advice}"
    rows = [memory_row("as asked", plan.as_asked), memory_row("with this", plan.memory)]
    header = ("GiB per device", "total", "weights", "gradients", "optimizer", "activations")
    yield Table(rows, header=header, right=range(1, len(header)))
    source = (
        plan.rate_source if plan.rate_source == GIVEN else f"{plan.rate_source}; set it with {option('rate')}"
    )
    also = f" ({duration(3600 * plan.hours)})" if plan.hours > DAYS_FROM_HOURS else ""
    yield (
        f"{plan.exaflops:.4g} exaFLOPs at {plan.rate / 1e12:,.3g} TFLOP/s per device ({source}): "
        f"{plan.hours:,.2f} hours{also}"
    )


def memory_row(name: str, memory: Memory) -> tuple[str, ...]:
    """Write the memory of one device by part."""
    parts = (memory.total, memory.weights, memory.gradients, memory.optimizer, memory.activations)
    return name, *(f"{part:.2f}" for part in parts)
