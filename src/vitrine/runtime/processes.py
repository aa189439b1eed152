"""One process or many: rank and world size, how processes find each other, and how they exchange values.

The same command runs alone, under torchrun and under SLURM, which set rank and world size by environment variables.
"""

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitrine.errors import RepeatedError, VitrineError
from vitrine.runtime.devices import choose_device
from vitrine.runtime.launch import Launch, launched

Result = TypeVar("Result")
# How often this process has joined others; equal in all of them.
_NUM_JOINED = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process among the others of its run, and the device that it computes on."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0


@contextmanager
def joined_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the other processes that a launcher started, if any, inside the block."""
    launch = launched()
    chosen = choose_device(device, launch.local_rank)
    processes = Processes(rank=launch.rank, world_size=launch.world_size, device=chosen)
    if launch.world_size == 1 or dist.is_initialized():
        yield processes
        return
    dist.init_process_group(
        "nccl" if chosen.type == "cuda" else "gloo",
        store=shared_store(launch),
        rank=launch.rank,
        world_size=launch.world_size,
    )
    try:
        yield processes
    finally:
        leave_processes()


def leave_processes() -> None:
    """Leave the group of processes; models that were wrapped in DDP and are no longer used are freed before it.

    Such a wrapper often refers to itself, and always to the group. If it is freed last, the group ends while this
    thread holds Python's lock, and waits for a thread of gloo that may wait for the lock (torch 2.13): neither
    continues.
    """
    gc.collect()
    dist.destroy_process_group()


def shared_store(launch: Launch) -> Store:
    """Return the store where processes find each other: a new part of it after every restart and every joining.

    torchrun keeps its store, with the addresses of processes that have ended, when it restarts processes.
    """
    address = "env://" if "MASTER_PORT" in os.environ else f"tcp://{launch.address}:{launch.port}"
    store, _, _ = next(rendezvous(address, launch.rank, launch.world_size))
    return PrefixStore(f"vitrine-{launch.restarts}-{next(_NUM_JOINED)}", store)


def on_first_process(work: Callable[[], Result], processes: Processes) -> Result:
    """Run `work` on the first process; return its result, or raise its error, on all of them."""
    if processes.world_size == 1:
        return work()
    error: VitrineError | None = None
    answer: list[Any] = [None, None]
    if processes.is_first:
        try:
            answer[0] = work()
        except VitrineError as caught:
            error, answer[1] = caught, (str(caught), caught.exit_code)
    dist.broadcast_object_list(answer)
    if error is not None:
        raise error
    if answer[1] is not None:
        raise RepeatedError(*answer[1])
    result: Result = answer[0]
    return result


def mean_over(value: Tensor, processes: Processes) -> Tensor:
    """Average a tensor over all processes, in place."""
    if processes.world_size > 1:
        dist.all_reduce(value, op=dist.ReduceOp.SUM)
        value /= processes.world_size
    return value


def largest(value: Tensor, processes: Processes) -> Tensor:
    """Take the maximum over all processes, in place."""
    if processes.world_size > 1:
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value


def anyone(flag: bool, processes: Processes) -> bool:
    """Whether the flag is set in any process."""
    if processes.world_size == 1:
        return flag
    return bool(largest(torch.tensor(float(flag), device=processes.device), processes).item())


def gathered(value: Result, processes: Processes) -> list[Result]:
    """Collect one object of every process, in their order, on all of them."""
    if processes.world_size == 1:
        return [value]
    parts: list[Any] = [None] * processes.world_size
    dist.all_gather_object(parts, value)
    return parts


def rank_and_count() -> tuple[int, int]:
    """Return the number of this process and how many there are, for code that cannot receive a `Processes`."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def all_rows(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes, equally many from each; gradients return to the process of each row."""
    if rank_and_count()[1] == 1:
        return rows
    everything: Tensor = _AllRows.apply(rows)  # type: ignore[no-untyped-call]
    return everything


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Every process has a loss that reads all rows: their gradients add up."""
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def wait_for_all(processes: Processes) -> None:
    """Wait until every process has reached this point."""
    if processes.world_size > 1:
        dist.barrier()
