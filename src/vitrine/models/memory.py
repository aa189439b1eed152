"""Memory of a training step per device and part, and the changes that make it fit. Arithmetic, no torch."""

from dataclasses import dataclass

from vitrine.models.cost import Cost

GIB = 1024**3
FP32 = 4
# Workspace and other buffers: fitted on one H200 (docs/experiments.md, Memory of a step).
SLACK = 1.08
# Group norm computes in fp32 under bf16 autocast: feature maps are kept in fp32 and partly in bf16 as well.
BYTES_OF_MAPS = {4: 4.0, 2: 4.5}


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """Bytes on one device."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """The sum of all parts and the allocator's overhead."""
        return SLACK * (self.weights + self.gradients + self.optimizer + self.activations)

    def in_gib(self) -> dict[str, float]:
        """Return every part and the total in GiB."""
        parts = ("weights", "gradients", "optimizer", "activations", "total")
        return {part: getattr(self, part) / GIB for part in parts}


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The values that determine the memory of a step."""

    cost: Cost
    states: int
    """Values that the optimizer keeps for each weight."""
    bytes_kept: int
    """Bytes for each value kept for the backward pass."""
    trained: int | None = None
    """Parameters that are trained; None is all. Activations are counted as if all were."""

    def memory(self, *, micro_batch: int, shards: int = 1, checkpointing: bool = False) -> MemoryParts:
        """Predict one device's memory for `micro_batch` images; `shards` divides what belongs to the weights."""
        cost = self.cost
        kept = cost.checkpointed_activations if checkpointing else cost.activations
        maps = cost.checkpointed_map_activations if checkpointing else cost.map_activations
        held = FP32 * self.cost.params / shards
        # Low precision computes with a copy of the weights, cast once per step.
        copy = 0 if self.bytes_kept == FP32 else self.bytes_kept * self.cost.params
        updated = held if self.trained is None else FP32 * self.trained / shards
        return MemoryParts(
            weights=held + copy,
            gradients=updated,
            optimizer=self.states * updated,
            activations=micro_batch * (kept * self.bytes_kept + maps * BYTES_OF_MAPS[self.bytes_kept]),
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The mildest change that fits, or the closest if none fits."""

    fits: bool
    micro_batch: int
    shard: bool
    activation_checkpointing: bool
    memory: MemoryParts
    advice: str


def fit(demand: Demand, *, per_device: int, devices: int, limit: float) -> Choice:
    """Find the mildest change that fits `limit` bytes: none, smaller micro-batches, recomputation, sharding.

    Micro-batches cost nothing but launch overhead; recomputation about a third more time; sharding needs several
    devices and a fast link. A micro-batch below eight images leaves a device idle, so recomputation comes first.
    """
    closest = None
    for least in (min(8, per_device), 1):
        for shard in (False, True) if devices > 1 else (False,):
            for checkpointing in (False, True):
                size = per_device
                while True:
                    memory = demand.memory(
                        micro_batch=size, shards=devices if shard else 1, checkpointing=checkpointing
                    )
                    if memory.total <= limit:
                        advice = advise(size, per_device, shard=shard, checkpointing=checkpointing)
                        return Choice(
                            fits=True,
                            micro_batch=size,
                            shard=shard,
                            activation_checkpointing=checkpointing,
                            memory=memory,
                            advice=advice,
                        )
                    if closest is None or memory.total < closest[0].total:
                        closest = (memory, size, shard, checkpointing)
                    if size // 2 < least:
                        break
                    size //= 2
    assert closest is not None
    memory, size, shard, checkpointing = closest
    return Choice(
        fits=False,
        micro_batch=size,
        shard=shard,
        activation_checkpointing=checkpointing,
        memory=memory,
        advice=f"even {advise(size, per_device, shard=shard, checkpointing=checkpointing)} needs "
        f"{memory.total / GIB:.1f} GiB on each device; use more devices (with sharding) or larger ones",
    )


def advise(size: int, per_device: int, *, shard: bool, checkpointing: bool) -> str:
    """Describe the chosen change."""
    parts = []
    if size < per_device:
        parts.append(f"micro-batches of {size} ({-(-per_device // size)} per step)")
    if checkpointing:
        parts.append("activation checkpointing")
    if shard:
        parts.append("sharding the weights over the devices")
    return " with ".join(parts) if parts else "as it is"
