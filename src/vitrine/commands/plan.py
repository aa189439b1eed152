"""`vitrine plan`: what a training run will need, before anything starts."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.spelling import counted, duration

GIB = 1024**3
# From here on hours are also said in days.
DAYS_FROM_HOURS = 72


@dataclass(frozen=True, kw_only=True)
class Memory:
    """GiB on each device, by part."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    total: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run that fits, or the reason why none does."""

    model: str
    params: int
    image_size: tuple[int, int]
    tokens: int | None
    batch_size: int
    devices: int
    device_memory: float
    as_asked: Memory
    """With the whole batch of each device at once and nothing saved."""
    fits: bool
    """Whether some way below fits."""
    micro_batch: int
    """Images on each device at a time; more than one step of this makes the batch."""
    shard: bool
    activation_checkpointing: bool
    memory: Memory
    """With the three choices above."""
    advice: str
    steps: int
    exaflops: float
    rate: float
    """Operations a second and device that the time is reckoned with."""
    rate_source: str
    hours: float

    def __str__(self) -> str:
        def line(memory: Memory) -> str:
            return (
                f"{memory.total:.1f} GiB (weights {memory.weights:.2f}, gradients {memory.gradients:.2f}, "
                f"optimizer {memory.optimizer:.2f}, activations {memory.activations:.2f})"
            )

        size = "x".join(map(str, self.image_size))
        tokens = "" if self.tokens is None else f", {self.tokens} tokens"
        also = f" ({duration(3600 * self.hours)})" if self.hours > DAYS_FROM_HOURS else ""
        return "\n".join(
            [
                f"{self.model}: {self.params:,} parameters at {size} px{tokens}",
                f"Batch {self.batch_size} on {counted(self.devices, 'device')} of {self.device_memory:g} GiB, "
                f"{counted(self.steps, 'step')}",
                f"As asked, on each device: {line(self.as_asked)}",
                f"{'Fits' if self.fits else 'Does not fit'}: {self.advice}",
                f"Then, on each device: {line(self.memory)}",
                f"{self.exaflops:.4g} exaFLOPs at {self.rate / 1e12:,.3g} TFLOP/s a device ({self.rate_source}): "
                f"{self.hours:,.2f} hours{also}",
            ]
        )


@documented
def plan(
    model: Annotated[str, Doc("Variant name, such as ViT-B/16")],
    *,
    batch_size: Annotated[int, Doc("Images per step, over all devices")] = 4096,
    devices: Annotated[int, Doc("Number of devices that train together")] = 1,
    device_memory: Annotated[float, Doc("Memory per device in GiB")] = 80.0,
    images: Annotated[float, Doc("Images in the training set")] = 1_281_167,
    epochs: Annotated[float, Doc("Passes over the training set")] = 300,
    size: Annotated[int | None, Doc("Image height and width in pixels")] = None,
    num_classes: Annotated[int, Doc("Number of classes")] = 1000,
    optimizer: Annotated[
        Literal["adamw", "sgd"], Doc("Optimizer; adamw keeps two averages per weight, sgd one")
    ] = "adamw",
    precision: Annotated[
        Literal["bf16", "fp32"], Doc("Number format of the activations; weights are fp32")
    ] = "bf16",
    rate: Annotated[
        float | None,
        Doc("Training speed of one device in TFLOP/s [default: measured on this machine in a second]"),
    ] = None,
) -> Plan:
    """Predict the memory and time of a training run, and suggest what makes it fit."""
    from vitrine.errors import ConfigError
    from vitrine.models.cost import cost_of, training_exaflops
    from vitrine.models.memory import Demand, fit
    from vitrine.models.variants import configure

    _require_above_zero(
        batch_size=batch_size, devices=devices, device_memory=device_memory, images=images, epochs=epochs
    )
    if batch_size % devices:
        nearest = max(batch_size // devices, 1) * devices
        raise ConfigError(
            f"batch_size must be a multiple of devices, got {batch_size} and {devices}; nearest that fits: {nearest}"
        )
    per_second, source = _training_rate(rate, precision=precision)
    config = configure(model, image_size=size, num_classes=num_classes)
    cost = cost_of(config)
    demand = Demand(
        cost=cost, states={"adamw": 2, "sgd": 1}[optimizer], bytes_kept={"bf16": 2, "fp32": 4}[precision]
    )
    per_device = batch_size // devices
    asked = demand.memory(micro_batch=per_device)
    choice = fit(demand, per_device=per_device, devices=devices, limit=device_memory * GIB)
    exaflops = training_exaflops(cost.macs, images=images, epochs=epochs)
    return Plan(
        model=model,
        params=cost.params,
        image_size=config.image_size,
        tokens=cost.tokens,
        batch_size=batch_size,
        devices=devices,
        device_memory=device_memory,
        as_asked=Memory(**asked.in_gib()),
        fits=choice.fits,
        micro_batch=choice.micro_batch,
        shard=choice.shard,
        activation_checkpointing=choice.activation_checkpointing,
        memory=Memory(**choice.memory.in_gib()),
        advice=choice.advice,
        steps=round(images * epochs / batch_size),
        exaflops=exaflops,
        rate=per_second,
        rate_source=source,
        hours=exaflops * 1e18 / per_second / devices / 3600,
    )


def _require_above_zero(**values: float) -> None:
    from vitrine.errors import ConfigError

    for name, value in values.items():
        if value <= 0:
            raise ConfigError(f"{name} must be above 0, got {value:g}")


def _training_rate(rate: float | None, *, precision: str) -> tuple[float, str]:
    """Return operations a second of a training step, stated or measured, and where the number comes from."""
    if rate is not None:
        return rate * 1e12, "as stated"
    from vitrine.runtime.hardware import measured_matmul_rate

    found, where = measured_matmul_rate(precision)
    # Half of the matmul rate is what a well-built training step reaches (47 to 53 % on one H200).
    return found / 2, f"half of the matmul rate measured on this {where}; state yours with --rate"
