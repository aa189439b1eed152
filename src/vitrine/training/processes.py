"""One process or many: who we are, how weights and gradients are shared (DDP, FSDP2).

The same command runs alone, under torchrun and under SLURM; all of them tell rank and world size by environment.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.bit import PreActivationUnit
from vitrine.models.encoder import Block


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process among its fellows, and the device that it trains on."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0


@contextmanager
def joined_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the other processes that a launcher started, if any, for the length of the block."""
    rank, world_size, local_rank = launched()
    chosen = choose_device(device, local_rank)
    if world_size == 1 or dist.is_initialized():
        yield Processes(rank=rank, world_size=world_size, device=chosen)
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", rank=rank, world_size=world_size)
    try:
        yield Processes(rank=rank, world_size=world_size, device=chosen)
    finally:
        dist.destroy_process_group()


def launched() -> tuple[int, int, int]:
    """Return rank, world size and local rank as torchrun or SLURM tells them; 0, 1, 0 without a launcher."""
    environment = os.environ
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return int(environment["RANK"]), int(environment["WORLD_SIZE"]), int(environment.get("LOCAL_RANK", 0))
    # SLURM sets these inside every step of srun; a single task needs no process group.
    if int(environment.get("SLURM_NTASKS", 1)) > 1 and "SLURM_PROCID" in environment:
        return (
            int(environment["SLURM_PROCID"]),
            int(environment["SLURM_NTASKS"]),
            int(environment["SLURM_LOCALID"]),
        )
    return 0, 1, 0


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device called `name`; `auto` is this process's GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"no device is called {name!r}; use auto, cpu or cuda") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {name!r} was asked for, but this torch sees no GPU; use --device cpu")
        torch.cuda.set_device(device)
    return device


def distributed(model: nn.Module, processes: Processes, *, shard: bool) -> nn.Module:
    """Return the module whose calls share gradients: the model itself, DDP round it, or the model sharded."""
    if processes.world_size == 1:
        return model
    if shard:
        from torch.distributed.fsdp import fully_shard

        # Blocks one by one, so that only one of them is whole at a time.
        for module in list(model.modules()):
            if isinstance(module, (Block, PreActivationUnit)):
                fully_shard(module)
        fully_shard(model)
        return model
    devices = [processes.device] if processes.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def mean_over(value: Tensor, processes: Processes) -> Tensor:
    """Average a tensor over all processes, in place."""
    if processes.world_size > 1:
        dist.all_reduce(value, op=dist.ReduceOp.SUM)
        value /= processes.world_size
    return value


def anyone(flag: bool, processes: Processes) -> bool:
    """Whether any process says yes."""
    if processes.world_size == 1:
        return flag
    votes = torch.tensor(float(flag), device=processes.device)
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes.item())


def wait_for_all(processes: Processes) -> None:
    """Go on when every process has come here."""
    if processes.world_size > 1:
        dist.barrier()
