"""Rows of matrices that processes exchange: every process gets its own rows of what one process would compute."""

import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from vitrine.training.muon import Muon, orthogonalised
from vitrine.training.sharded_muon import exchanged


def on_each(rank: int, count: int, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,))
    generator = torch.Generator().manual_seed(0)
    for num_matrices, height, width in ((1, 4, 6), (2, 6, 4), (5, 7, 3), (4, 1, 5), (3, 2, 2)):
        whole = torch.randn(num_matrices, height, width, generator=generator)
        share = -(-height // count)
        own = whole[:, rank * share : (rank + 1) * share]
        rows = exchanged(own, num_rows=height, mesh=mesh, work=orthogonalised)
        expected = orthogonalised(whole)[:, rank * share : (rank + 1) * share]
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-6)
    check_steps(mesh, generator)
    dist.destroy_process_group()


def check_steps(mesh, generator: torch.Generator) -> None:
    """Three steps over matrices of several groups, one with a gradient that is not finite."""
    shapes = [(6, 4), (6, 4), (4, 6), (6, 4), (5, 3)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    whole = [torch.nn.Parameter(value.clone()) for value in start]
    divided = [torch.nn.Parameter(distribute_tensor(value.clone(), mesh, [Shard(0)])) for value in start]

    def optimizer(parameters: list[torch.nn.Parameter]) -> Muon:
        groups = [
            {"params": part, "lr_scale": 1.0, "weight_decay": decay, "is_matrix": True, "lr": rate}
            for part, decay, rate in ((parameters[:2], 0.1, 0.02), (parameters[2:], 0.0, 0.05))
        ]
        return Muon(groups, betas=(0.9, 0.99), momentum=0.95)

    one, many = optimizer(whole), optimizer(divided)
    for is_bad in (0.0, 1.0, 0.0):
        one.found_inf = many.found_inf = torch.tensor(is_bad)
        for parameter, part in zip(whole, divided, strict=True):
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad, part.grad = gradient, distribute_tensor(gradient, mesh, [Shard(0)])
        one.step()
        many.step()
        for parameter, part in zip(whole, divided, strict=True):
            torch.testing.assert_close(part.full_tensor(), parameter.data, rtol=0, atol=1e-6)
            momentum = many.state[part]["momentum"].full_tensor()
            torch.testing.assert_close(momentum, one.state[parameter]["momentum"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3])
def test_matrices_divided_by_rows_are_orthogonalised_as_whole_ones(tmp_path: Path, count: int) -> None:
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=on_each, args=(rank, count, str(tmp_path / "store"))) for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count
