"""Muon: momentum whose update of each matrix is orthogonalised (Jordan et al., 2024), AdamW for the rest.

Matrices of the same shape are orthogonalised together in one batch: a ViT has `depth` of each.
"""

from typing import Any

import torch
from torch import Tensor

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
        """Update every parameter; nothing at all where `found_inf` says that a gradient is not finite."""
        found = getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
            if found is not None:  # zeros where anything is not finite, so that no state is spoilt
                gradients = [torch.where(found > 0, 0.0, gradient) for gradient in gradients]
            update = self._matrix_updates if group["is_matrix"] else self._adam_updates
            changes = update(group, parameters, gradients)
            torch._foreach_add_(changes, parameters, alpha=group["weight_decay"])
            if found is not None:
                torch._foreach_mul_(changes, torch.where(found > 0, 0.0, 1.0))
            torch._foreach_add_(parameters, changes, alpha=-group["lr"])

    def _matrix_updates(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]
    ) -> list[Tensor]:
        momenta = [self._buffer(parameter, "momentum") for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov's look ahead
        by_shape: dict[torch.Size, list[int]] = {}
        for index, parameter in enumerate(parameters):
            by_shape.setdefault(parameter.shape, []).append(index)
        changes: list[Tensor] = list(ahead)
        for shape, indices in by_shape.items():
            # An orthogonal (m, n) matrix has entries of 1 / sqrt(max(m, n)); this scale gives them Adam's size.
            scale = 0.2 * max(shape) ** 0.5
            flat = orthogonalised(torch.stack([ahead[i] for i in indices])) * scale
            for i, change in zip(indices, flat.to(parameters[0].dtype), strict=True):
                changes[i] = change
        return changes

    def _adam_updates(
        self, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]
    ) -> list[Tensor]:
        first, second = group["betas"]
        averages = [self._buffer(parameter, "exp_avg") for parameter in parameters]
        squares = [self._buffer(parameter, "exp_avg_sq") for parameter in parameters]
        counts = [self._buffer(parameter, "step", shape=()) for parameter in parameters]
        torch._foreach_add_(counts, 1)
        torch._foreach_lerp_(averages, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        count = counts[0]  # all of them have taken every step
        correction = (1 - second**count).sqrt() / (1 - first**count)
        sizes = torch._foreach_sqrt(squares)
        torch._foreach_add_(sizes, group["eps"])
        changes = torch._foreach_div(averages, sizes)
        torch._foreach_mul_(changes, correction)
        return list(changes)

    def _buffer(self, parameter: Tensor, name: str, *, shape: tuple[int, ...] | None = None) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            like = parameter.shape if shape is None else shape
            state[name] = torch.zeros(like, device=parameter.device, dtype=parameter.dtype)
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
