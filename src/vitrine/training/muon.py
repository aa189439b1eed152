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
            update = self._matrix_updates if group["is_matrix"] else self._adam_updates
            updates = update(group, parameters, found)
            for parameter, change in zip(parameters, updates, strict=True):
                moved = group["lr"] * (change + group["weight_decay"] * parameter)
                parameter.sub_(moved if found is None else torch.where(found > 0, 0.0, moved))

    def _matrix_updates(
        self, group: dict[str, Any], parameters: list[Tensor], found: Tensor | None
    ) -> list[Tensor]:
        changes: dict[torch.Size, list[int]] = {}
        for index, parameter in enumerate(parameters):
            changes.setdefault(parameter.shape, []).append(index)
        updates: list[Tensor] = [torch.empty(0)] * len(parameters)
        for shape, indices in changes.items():
            gradients = finite_stack([parameters[i] for i in indices], found)
            momenta = [self._buffer(parameters[i], "momentum") for i in indices]
            torch._foreach_lerp_(momenta, list(gradients), 1 - group["momentum"])
            ahead = gradients.lerp(torch.stack(momenta), group["momentum"])  # Nesterov's look ahead
            # An orthogonal (m, n) matrix has entries of 1 / sqrt(max(m, n)); this scale gives them Adam's size.
            scale = 0.2 * max(shape) ** 0.5
            for i, change in zip(indices, orthogonalised(ahead), strict=True):
                updates[i] = change.to(parameters[i].dtype) * scale
        return updates

    def _adam_updates(
        self, group: dict[str, Any], parameters: list[Tensor], found: Tensor | None
    ) -> list[Tensor]:
        first, second = group["betas"]
        updates = []
        for parameter in parameters:
            gradient = finite_stack([parameter], found)[0]
            count = self._buffer(parameter, "step", shape=())
            average, square = self._buffer(parameter, "exp_avg"), self._buffer(parameter, "exp_avg_sq")
            count.add_(1 if found is None else (found <= 0).to(count.dtype).reshape(()))
            average.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            correction = (1 - second**count).sqrt() / (1 - first**count)
            updates.append(correction * average / (square.sqrt() + group["eps"]))
        return updates

    def _buffer(self, parameter: Tensor, name: str, *, shape: tuple[int, ...] | None = None) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            like = parameter.shape if shape is None else shape
            state[name] = torch.zeros(like, device=parameter.device, dtype=parameter.dtype)
        buffer: Tensor = state[name]
        return buffer


def finite_stack(parameters: list[Tensor], found: Tensor | None) -> Tensor:
    """Stack gradients (L, m, n); zeros where they are not finite, so that no state is spoilt."""
    gradients = torch.stack([p.grad for p in parameters if p.grad is not None])
    return gradients if found is None else torch.where(found > 0, torch.zeros_like(gradients), gradients)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrix of each (L, m, n), roughly, by Newton-Schulz in bf16 on CUDA."""
    a, b, c = COEFFICIENTS
    X = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    is_tall = X.shape[-2] > X.shape[-1]
    X = X.mT if is_tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = X @ X.mT
        X = a * X + (b * gram + c * gram @ gram) @ X
    return X.mT if is_tall else X
