"""Processes that train together, and how they part."""

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from vitrine.runtime import processes
from vitrine.runtime.launch import Launch
from vitrine.runtime.processes import joined_processes


def test_a_wrapped_model_is_freed_before_its_group_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other order may end in a deadlock, which no test can wait for."""
    alive: list[bool] = []
    destroy, wrapped = dist.destroy_process_group, []

    def parted() -> None:
        alive.append(wrapped[0]() is not None)
        destroy()

    def train() -> None:
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        model.__dict__["itself"] = model  # as DDP itself does until torch's compiler is imported
        wrapped.append(weakref.ref(model))

    join = dist.init_process_group
    monkeypatch.setattr(processes, "launched", lambda: Launch(world_size=2))
    monkeypatch.setattr(processes, "shared_store", lambda launch: dist.HashStore())
    monkeypatch.setattr(dist, "init_process_group", lambda *a, **k: join(*a, **{**k, "world_size": 1}))
    monkeypatch.setattr(dist, "destroy_process_group", parted)
    gc.disable()
    try:
        with joined_processes("cpu"):
            train()
            assert wrapped[0]() is not None
    finally:
        gc.enable()
    assert alive == [False]
    assert not dist.is_initialized()
