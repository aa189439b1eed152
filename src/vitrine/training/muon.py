"""Muon: momentum whose update of each matrix is orthogonalised (Jordan et al., 2024), AdamW for the rest.

Matrices of the same shape are orthogonalised together in one batch: a ViT has `depth` of each.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

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
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters and group["is_matrix"]:
                self._step_matrices(group, parameters, is_bad)
            elif parameters:
                self._step_others(group, parameters, is_bad)

    def _step_matrices(self, group: dict[str, Any], parameters: list[Tensor], is_bad: Tensor | None) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        for shape, alike in by_shape.items():
            gradients = torch.stack([p.grad for p in alike if p.grad is not None])
            if is_bad is not None:  # zeros if anything is NaN or infinity, so that no state is spoilt
                gradients = torch.where(is_bad > 0, 0.0, gradients)
            momenta = [self._buffer(parameter, "momentum") for parameter in alike]
            torch._foreach_lerp_(momenta, list(gradients), 1 - group["momentum"])
            ahead = gradients.lerp(torch.stack(momenta), group["momentum"])  # Nesterov's look ahead
            # An orthogonal (m, n) matrix has entries of 1 / sqrt(max(m, n)); this scale gives them Adam's size.
            scale = 0.2 * max(shape) ** 0.5
            changes = orthogonalised(ahead).to(gradients.dtype) * scale
            changes = changes.add(torch.stack(alike), alpha=group["weight_decay"])
            if is_bad is not None:
                changes = torch.where(is_bad > 0, 0.0, changes)
            torch._foreach_sub_(alike, list(changes * group["lr"]))  # a rate may be a tensor

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
            like = parameter.shape if shape is None else shape
            dtype = torch.float32 if shape == () else parameter.dtype  # as torch counts its own steps
            state[name] = torch.zeros(like, device=parameter.device, dtype=dtype)
        buffer: Tensor = state[name]
        return buffer


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrix of each (L, m, n), roughly, by Newton-Schulz in bf16 on CUDA."""
    a, b, c = COEFFICIENTS
    X = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    is_tall = X.shape[-2] > X.shape[-1]
    X = X.mT if is_tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = X @ X.mT
        mixed = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        X = torch.baddbmm(X, mixed, X, beta=a)
    return X.mT if is_tall else X
