"""The work behind `vitrine plan`: memory, steps and hours of a training run, from the cost of its model."""

from dataclasses import dataclass

from vitrine.errors import ConfigError
from vitrine.models.cost import cost_of, training_exaflops
from vitrine.models.memory import Demand, fit
from vitrine.models.variants import configure
from vitrine.runtime.hardware import measured_matmul_rate
from vitrine.runtime.result import Result

GIB = 1024**3
STATES = {"adamw": 2, "sgd": 1}
BYTES_KEPT = {"bf16": 2, "fp32": 4}
# Half of the matmul rate is what a well-built training step reaches (47 to 53 % on one H200).
FRACTION_OF_MATMUL = 0.5
GIVEN = "as given"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """GiB on each device, by part."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    total: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Result):
    """A run that fits, or the reason why none does."""

    model: str
    params: int
    image_size: tuple[int, int]
    max_patches: int | None
    """Most patches per image, for images at their own aspect ratio; every image is counted with as many."""
    tokens: int | None
    batch_size: int
    devices: int
    device_memory: float
    as_asked: Memory
    """Without micro-batches, sharding or activation checkpointing."""
    fits: bool
    """Whether the run fits with the settings below."""
    micro_batch: int
    """Images on each device at a time; several of them make up the batch of a step."""
    shard: bool
    activation_checkpointing: bool
    memory: Memory
    """Memory with `micro_batch`, `shard` and `activation_checkpointing` as above."""
    advice: str
    """These three settings in words."""
    steps: int
    exaflops: float
    rate: float
    """Operations per second and device that the time is computed with."""
    rate_source: str
    """Source of the rate: given, or measured on which device."""
    hours: float


def plan_training(
    model: str,
    *,
    batch_size: int,
    devices: int,
    device_memory: float,
    images: float,
    epochs: float,
    image_size: int | None,
    max_patches: int | None,
    num_classes: int,
    optimizer: str,
    precision: str,
    rate: float | None,
) -> Plan:
    """Compute the memory of a run on each device, and the smallest change that makes it fit."""
    require_equal_shares(batch_size, devices)
    config = configure(model, image_size=image_size, num_classes=num_classes)
    cost = cost_of(config, patches=max_patches)
    demand = Demand(cost=cost, states=STATES[optimizer], bytes_kept=BYTES_KEPT[precision])
    per_device = batch_size // devices
    choice = fit(demand, per_device=per_device, devices=devices, limit=device_memory * GIB)
    exaflops = training_exaflops(cost.macs, images=images, epochs=epochs)
    per_second, rate_source = training_rate(rate, precision=precision)
    return Plan(
        model=model,
        params=cost.params,
        image_size=config.image_size,
        max_patches=max_patches,
        tokens=cost.tokens,
        batch_size=batch_size,
        devices=devices,
        device_memory=device_memory,
        as_asked=Memory(**demand.memory(micro_batch=per_device).in_gib()),
        fits=choice.fits,
        micro_batch=choice.micro_batch,
        shard=choice.shard,
        activation_checkpointing=choice.activation_checkpointing,
        memory=Memory(**choice.memory.in_gib()),
        advice=choice.advice,
        steps=round(images * epochs / batch_size),
        exaflops=exaflops,
        rate=per_second,
        rate_source=rate_source,
        hours=exaflops * 1e18 / per_second / devices / 3600,
    )


def require_equal_shares(batch_size: int, devices: int) -> None:
    """Refuse a batch that the devices cannot divide; the error names the nearest that they can."""
    if batch_size % devices:
        nearest = max(batch_size // devices, 1) * devices
        raise ConfigError(
            f"must be a multiple of the {devices} devices, got {batch_size}; nearest that fits: {nearest}",
            option="batch_size",
        )


def training_rate(rate: float | None, *, precision: str) -> tuple[float, str]:
    """Return operations per second of a training step, given in TFLOP/s or measured, and where they come from."""
    if rate is not None:
        return rate * 1e12, GIVEN
    matmul, device = measured_matmul_rate(precision)
    return FRACTION_OF_MATMUL * matmul, f"half of the matmul rate measured on this {device}"
