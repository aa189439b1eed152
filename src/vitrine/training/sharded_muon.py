"""Matrices whose rows are divided among processes: rows are exchanged, so that each process has some matrices whole.

With L matrices and P processes, process p works on matrices p, p + P, p + 2 P... Each one sends and receives as many
numbers as it stores, twice: less than gathering all matrices on all processes by a factor of P, and nothing is
computed twice.

Shapes: L matrices (m, n) in all, K of them whole on this process, of which this process stores r rows.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's rows of a sharded tensor, to read or to change in place; any other tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def exchanged(rows: Tensor, *, num_rows: int, mesh: DeviceMesh, work: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `work` to whole matrices of which every process has some rows (L, r, n); return its rows of the results.

    The rows are divided as FSDP2 does: ceil(m / P) for each process, as long as there are any.
    """
    count, rank, group = mesh.size(), mesh.get_local_rank(), mesh.get_group()
    share = -(-num_rows // count)
    heights = [min(max(num_rows - process * share, 0), share) for process in range(count)]
    assert rows.shape[1] == heights[rank]
    num_matrices, _, width = rows.shape
    owned = [len(range(process, num_matrices, count)) for process in range(count)]
    order = [number for process in range(count) for number in range(process, num_matrices, count)]
    sent = rows[order]  # those of process 0 first
    outgoing = [owned[process] * heights[rank] * width for process in range(count)]
    incoming = [owned[rank] * heights[process] * width for process in range(count)]
    pieces = _all_to_all(sent.reshape(-1), outgoing, incoming, group)
    if owned[rank]:
        whole = torch.cat(  # (K, m, n)
            [
                piece.view(owned[rank], height, width)
                for piece, height in zip(torch.split(pieces, incoming), heights, strict=True)
            ],
            dim=1,
        )
        done = work(whole).to(rows.dtype)
        back = torch.cat([part.reshape(-1) for part in torch.split(done, heights, dim=1)])
    else:
        back = pieces
    received = _all_to_all(back, incoming, outgoing, group).view(num_matrices, heights[rank], width)
    results = torch.empty_like(received)
    results[order] = received
    return results


def _all_to_all(sent: Tensor, outgoing: list[int], incoming: list[int], group: dist.ProcessGroup) -> Tensor:
    received = sent.new_empty(sum(incoming))
    dist.all_to_all_single(received, sent.contiguous(), incoming, outgoing, group=group)
    return received
