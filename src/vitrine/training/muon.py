"""Muon: momentum whose update of each matrix is orthogonalised (Jordan et al., 2024), AdamW for the rest.

Matrices of the same shape are orthogonalised together in one batch: a ViT has `depth` of each. If a run is sharded
(FSDP2), each process has some rows of every matrix; the processes exchange rows, so that each one orthogonalises some
matrices whole, and send the rows back (`sharded_muon.py`).
"""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from vitrine.training.sharded_muon import exchanged, local_part

# A quintic whose iteration drives singular values towards 1 from anywhere in (0, 1] in five steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Groups with `is_matrix` get orthogonalised momentum, others AdamW."""

    def __init__(
        self, groups: list[dict[str, Any]], *, betas: tuple[float, float], momentum: float, eps: float = 1e-8
    ) -> None:
        super().__init__(groups, {"lr": 1.0, "betas": betas, "momentum": momentum, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter; change nothing if `found_inf` flags a gradient with NaN or infinity."""
        is_bad = getattr(self, "found_inf", None)
        matrices: dict[tuple[torch.Size, int | None], list[tuple[Tensor, dict[str, Any]]]] = {}
        for number, group in enumerate(self.param_groups):
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters and not group["is_matrix"]:
                self._step_others(group, parameters, is_bad)
                continue
            # If processes divide matrices, those of all groups are collected, so that each process gets equally many.
            for parameter in parameters:
                own = None if isinstance(parameter, DTensor) else number
                matrices.setdefault((parameter.shape, own), []).append((parameter, group))
        for (shape, _), alike in matrices.items():
            self._step_matrices(shape, alike, is_bad)

    def _step_matrices(
        self, shape: torch.Size, alike: list[tuple[Tensor, dict[str, Any]]], is_bad: Tensor | None
    ) -> None:
        """Update matrices of one shape, or this process's rows of them."""
        weights = [local_part(parameter) for parameter, _ in alike]
        gradients = torch.stack([local_part(p.grad) for p, _ in alike if p.grad is not None])
        if is_bad is not None:  # zeros if anything is NaN or infinity, to keep the state valid
            gradients = torch.where(is_bad > 0, 0.0, gradients)
        momenta = [local_part(self._buffer(parameter, "momentum")) for parameter, _ in alike]
        memory = alike[0][1]["momentum"]
        torch._foreach_lerp_(momenta, list(gradients), 1 - memory)
        ahead = gradients.lerp(torch.stack(momenta), memory)  # Nesterov momentum
        first = alike[0][0]
        if isinstance(first, DTensor):
            own = ahead.to(precision_on(ahead))
            rows = exchanged(own, num_rows=shape[0], mesh=first.device_mesh, work=orthogonalised)
        else:
            rows = orthogonalised(ahead)
        # An orthogonal (m, n) matrix has entries of 1 / sqrt(max(m, n)); this scale gives them Adam's size.
        changes = rows.to(gradients.dtype) * (0.2 * max(shape) ** 0.5)
        for _, members in itertools.groupby(range(len(alike)), key=lambda number: id(alike[number][1])):
            numbers = list(members)
            group, changed = alike[numbers[0]][1], [weights[number] for number in numbers]
            steps = changes[numbers[0] : numbers[-1] + 1].add(
                torch.stack(changed), alpha=group["weight_decay"]
            )
            if is_bad is not None:
                steps = torch.where(is_bad > 0, 0.0, steps)
            torch._foreach_sub_(changed, list(steps * group["lr"]))  # a rate may be a tensor

    def _step_others(self, group: dict[str, Any], parameters: list[Tensor], is_bad: Tensor | None) -> None:
        first, second = group["betas"]
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [self._buffer(parameter, "exp_avg") for parameter in parameters],
            [self._buffer(parameter, "exp_avg_sq") for parameter in parameters],
            [],
            [self._buffer(parameter, "step", shape=()) for parameter in parameters],
            fused=True,
            found_inf=is_bad,
            amsgrad=False,
            beta1=first,
            beta2=second,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _buffer(self, parameter: Tensor, name: str, *, shape: tuple[int, ...] | None = None) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            # Steps are counted as in torch's AdamW.
            state[name] = (
                torch.zeros_like(parameter)
                if shape is None
                else torch.zeros(shape, device=parameter.device, dtype=torch.float32)
            )
        buffer: Tensor = state[name]
        return buffer


def precision_on(matrices: Tensor) -> torch.dtype:
    """Return the precision of the iteration: bf16 on CUDA."""
    return torch.bfloat16 if matrices.is_cuda else torch.float32


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrix of each (L, m, n), roughly, by Newton-Schulz in bf16 on CUDA."""
    a, b, c = COEFFICIENTS
    X = matrices.to(precision_on(matrices))
    is_tall = X.shape[-2] > X.shape[-1]
    X = X.mT if is_tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = X @ X.mT
        mixed = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        X = torch.baddbmm(X, mixed, X, beta=a)
    return X.mT if is_tall else X
