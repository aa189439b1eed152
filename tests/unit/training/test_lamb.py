"""LAMB against its formula and against timm's."""

import math

import torch
from torch import nn

from vitrine.checkpoints.libraries import import_installed
from vitrine.training.config import TrainingConfig
from vitrine.training.lamb import Lamb
from vitrine.training.optimizer import make_optimizer


def gradients(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, generator=generator) for _ in range(count)]


def test_three_steps_equal_the_written_out_formula() -> None:
    weight = torch.linspace(-1, 1, 12).view(4, 3)
    parameter = nn.Parameter(weight.clone())
    lamb = Lamb([{"params": [parameter], "lr": 0.1, "weight_decay": 0.05}], betas=(0.9, 0.99))
    mean, square = torch.zeros(4, 3), torch.zeros(4, 3)
    for step, gradient in enumerate(gradients(3), start=1):
        parameter.grad = gradient.clone()
        lamb.step()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        update = (mean / (1 - 0.9**step)) / ((square / (1 - 0.99**step)).sqrt() + 1e-6) + 0.05 * weight
        ratio = math.sqrt(float((weight**2).sum())) / math.sqrt(float((update**2).sum()))
        weight = weight - 0.1 * ratio * update
    torch.testing.assert_close(parameter.detach(), weight, rtol=1e-5, atol=1e-6)


def test_five_steps_equal_timms_with_and_without_decay() -> None:
    optim = import_installed("timm.optim")
    for decay in (0.05, 0.0):
        ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3)) for _ in range(2))
        lamb = Lamb([{"params": [ours], "lr": 0.01, "weight_decay": decay}], betas=(0.9, 0.999))
        # timm clips at a global norm of 1 unless told otherwise; here the loop clips.
        other = optim.Lamb([theirs], lr=0.01, weight_decay=decay, betas=(0.9, 0.999), max_grad_norm=None)
        for gradient in gradients(5):
            ours.grad, theirs.grad = gradient.clone(), gradient.clone()
            lamb.step()
            other.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_gradient_with_infinity_changes_neither_weights_nor_moments() -> None:
    parameter = nn.Parameter(torch.ones(4, 3))
    lamb = Lamb([{"params": [parameter], "lr": 0.1, "weight_decay": 0.05}], betas=(0.9, 0.999))
    parameter.grad = torch.full((4, 3), torch.inf)
    lamb.found_inf = torch.tensor(1.0)  # type: ignore[attr-defined]
    lamb.step()
    assert torch.equal(parameter, torch.ones(4, 3))
    assert float(lamb.state[parameter]["step"]) == 0
    assert not lamb.state[parameter]["exp_avg"].any()


def test_the_recipe_chooses_it_and_norms_are_not_scaled() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    optimizer = make_optimizer(model, TrainingConfig(optimizer="lamb", weight_decay=0.1))
    assert isinstance(optimizer, Lamb)
    decays = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["names"]}
    assert decays == {"0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0}
