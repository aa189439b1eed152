"""Optimizers, the learning rate and weight decay of each parameter, and the learning rate by step (appendix B.1)."""

import math
import re
from typing import Any

import torch
from torch import nn

from vitrine.errors import ConfigError
from vitrine.training.config import Decay, TrainingConfig
from vitrine.training.muon import Muon


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Freeze what is not trained and build the optimizer of the rest.

    Every group has `lr_scale`, which the loop multiplies the schedule's rate with.
    """
    freeze(model, config)
    groups = parameter_groups(model, config)
    if not groups:
        raise ConfigError("nothing to train: the model has no head; give it num_classes or train all of it")
    if config.optimizer == "sgd":
        return DecoupledSGD(groups, lr=1.0, momentum=config.momentum, fused=True)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=1.0, betas=config.betas, fused=True)
    return Muon(groups, betas=config.betas, momentum=0.95)


def freeze(model: nn.Module, config: TrainingConfig) -> None:
    """Freeze parameters that are not trained; call it before DDP, which waits for all other gradients."""
    depth = num_blocks(model)
    if config.frozen_blocks > depth:
        raise ConfigError(
            f"must be at most {depth}, the number of blocks of the model, got {config.frozen_blocks}",
            option="freeze",
        )
    for name, parameter in model.named_parameters():
        is_trained = is_head(name) if config.trains == "head" else not is_teacher(name)
        is_frozen = config.frozen_blocks > 0 and layer_number(name, depth) <= config.frozen_blocks
        parameter.requires_grad_(is_trained and not is_frozen)


def parameter_groups(model: nn.Module, config: TrainingConfig) -> list[dict[str, Any]]:
    """Sort the trained parameters by learning-rate scale, decay and, for muon, by kind."""
    depth = num_blocks(model)
    groups: dict[tuple[float, float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = config.weight_decay if config.decays_all or is_kernel(name, parameter) else 0.0
        scale = config.layer_decay ** (depth + 1 - layer_number(name, depth))
        is_matrix = config.optimizer == "muon" and block_of(name) is not None and parameter.ndim == 2
        if is_matrix:
            scale *= config.matrix_lr_factor
            decay /= config.matrix_lr_factor
        key = (scale, decay, is_matrix)
        group = groups.setdefault(
            key, {"params": [], "names": [], "lr_scale": scale, "weight_decay": decay, "is_matrix": is_matrix}
        )
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def is_head(name: str) -> bool:
    """Whether a parameter belongs to the classifier."""
    return name.split(".", maxsplit=1)[0] in ("head", "distillation_head")


def is_teacher(name: str) -> bool:
    """Whether a parameter belongs to a module's `teacher`, which averages the trained weights without gradients."""
    return name.split(".", maxsplit=1)[0] == "teacher"


def is_kernel(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter multiplies activations: not a bias, a norm, a token or a position table."""
    return parameter.ndim > 1 and name.endswith(".weight")


def block_of(name: str) -> int | None:
    """Return the number of the block (ViT) or stage (BiT) that a parameter belongs to, if any."""
    match = re.search(r"(?:^|\.)(?:blocks|stages)\.(\d+)\.", name)
    return int(match[1]) if match else None


def num_blocks(model: nn.Module) -> int:
    """Count the blocks (ViT) or stages (BiT) of a model."""
    return 1 + max((block_of(name) or 0 for name, _ in model.named_parameters()), default=0)


def layer_number(name: str, depth: int) -> int:
    """Count layers for layer-wise decay: 0 for the embedding, 1... for blocks, depth + 1 for norm and head."""
    block = block_of(name)
    if block is not None and not name.startswith("stem."):
        return block + 1
    last = ("norm.", "head.", "distillation_head.", "representation.", "attention_pooling.")
    return depth + 1 if name.startswith(last) else 0


class DecoupledSGD(torch.optim.SGD):
    """SGD whose weight decay is decoupled: w <- w - lr x wd x w, then the momentum step."""

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        for group in groups:
            group["decoupled_decay"] = group.pop("weight_decay")
        super().__init__(groups, weight_decay=0.0, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Decay, then step; change nothing if `found_inf` flags a gradient with NaN or infinity."""
        found = getattr(self, "found_inf", None)
        for group in self.param_groups:
            if group["decoupled_decay"]:
                factor = 1 - group["lr"] * group["decoupled_decay"]
                kept = factor if found is None else torch.where(found > 0, 1.0, factor)
                for parameter in group["params"]:
                    parameter.mul_(kept)
        super().step(closure)


def set_rates(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group from that of the schedule."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):  # recorded steps read it in place
            group["lr"].fill_(rate * group["lr_scale"])
        else:
            group["lr"] = rate * group["lr_scale"]


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup_steps: int,
    total_steps: int,
    decay: Decay = "cosine",
    end: float = 0.0,
    boundaries: tuple[float, ...] = (),
) -> float:
    """Return the rate of `step` (from 0): LR = base x decay(progress) x min(1, step / warm-up).

    `progress` runs from 0 at the end of the warm-up to 1 at `total_steps`. `steps` divides by ten at each of
    `boundaries`, shares of the whole run (BiT-HyperRule).
    """
    warmup = min(warmup_steps, total_steps)
    progress = min(max((step - warmup) / max(total_steps - warmup, 1), 0.0), 1.0)
    if decay == "cosine":
        rate = end + (peak - end) * (1 + math.cos(math.pi * progress)) / 2
    elif decay == "linear":
        rate = end + (peak - end) * (1 - progress)
    elif decay == "steps":
        rate = peak * 0.1 ** sum(step >= share * total_steps for share in boundaries)
    else:
        rate = peak
    return rate * min(1.0, step / warmup) if warmup else rate
