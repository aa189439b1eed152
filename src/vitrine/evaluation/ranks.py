"""Rows that several processes worked out, brought together on each of them.

Process r of W has rows r * N // W up to (r + 1) * N // W, as `Loader.evaluation_batches` shares them out.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def this_rank() -> tuple[int, int]:
    """Return this process's number and how many there are: (0, 1) where nothing is distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gather_rows(rows: Tensor, *, length: int) -> Tensor:
    """Join every process's share of the rows (n, ...) into all of them (length, ...), in order, on the CPU."""
    rank, world_size = this_rank()
    if world_size == 1:
        assert len(rows) == length
        return rows.cpu()
    shares = [(r + 1) * length // world_size - r * length // world_size for r in range(world_size)]
    assert len(rows) == shares[rank]
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else "cpu"
    # Shares differ by one row at most, and all_gather wants them equal: pad, gather, cut.
    padded = torch.zeros((max(shares), *rows.shape[1:]), dtype=rows.dtype, device=device)
    padded[: len(rows)] = rows.to(device)
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:share] for part, share in zip(parts, shares, strict=True)]).cpu()


def gather_mappings(mapping: dict[int, str]) -> dict[int, str]:
    """Join the processes' dictionaries into one, in order of the keys."""
    _, world_size = this_rank()
    parts: list[Any] = [mapping]
    if world_size > 1:
        parts = [None] * world_size
        dist.all_gather_object(parts, mapping)
    return dict(sorted((key, value) for part in parts for key, value in part.items()))


def on_every_rank(claim: bool) -> bool:
    """Say whether a claim holds on every process, so that all take the same branch."""
    _, world_size = this_rank()
    if world_size == 1:
        return claim
    claims: list[Any] = [None] * world_size
    dist.all_gather_object(claims, claim)
    return all(claims)
