"""Optimizers, the learning rate and weight decay of each parameter, and the learning rate by step (appendix B.1)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitrine.errors import ConfigError
from vitrine.models.fixed import fixed_parameters
from vitrine.models.lora import is_adapter
from vitrine.training.config import Decay, TrainingConfig
from vitrine.training.lamb import Lamb
from vitrine.training.muon import Muon
from vitrine.training.schedule_free import ScheduleFree

LAST = ("norm.", "head.", "decoder.", "distillation_head.", "representation.", "attention_pooling.")
# Prefix of the encoder in a dense model.
ENCODER = "vit."
# Prefix of the model in a module that adds parts for training only to a dense model.
MODEL = "model."


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Freeze the parameters that are not trained and build the optimizer of the rest.

    Every group has an `lr_scale`, by which the loop multiplies the schedule's rate.
    """
    freeze(model, config)
    groups = parameter_groups(model, config)
    if not groups:
        raise ConfigError("nothing to train: the model has no head; give it num_classes or train all of it")
    if config.optimizer == "sgd":
        return DecoupledSGD(groups, lr=1.0, momentum=config.momentum, fused=True)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=1.0, betas=config.betas, fused=True)
    if config.optimizer == "lamb":
        return Lamb(groups, betas=config.betas)
    if config.optimizer == "schedule-free":
        return ScheduleFree(groups, betas=config.betas)
    return Muon(groups, betas=config.betas, momentum=config.matrix_momentum)


def freeze(model: nn.Module, config: TrainingConfig) -> None:
    """Freeze parameters that are not trained; call it before DDP, which waits for all other gradients."""
    layers = Layers.of(model)
    depth = layers.depth
    if abs(config.frozen_blocks) > depth:
        raise ConfigError(
            f"must be at most {depth}, the number of blocks of the model, got {config.frozen_blocks}",
            option="freeze",
        )
    frozen = config.frozen_blocks if config.frozen_blocks >= 0 else depth + config.frozen_blocks
    fixed = fixed_parameters(model)
    if config.freezes_patches and not any(is_patch_projection(name) for name, _ in model.named_parameters()):
        raise ConfigError("freezes_patches needs a ViT, which has a patch projection")
    for name, parameter in model.named_parameters():
        is_frozen = config.frozen_blocks != 0 and layers.number(name) <= frozen
        parameter.requires_grad_(is_trained(name, config) and not is_frozen and name not in fixed)


def is_trained(name: str, config: TrainingConfig) -> bool:
    """Whether a parameter is of the kind that is trained (all, adapters or biases); the head always is."""
    if is_head(name):
        return True
    if config.freezes_patches and is_patch_projection(name):
        return False
    if config.lora_rank is not None:
        return is_adapter(name)
    if config.trains == "biases":
        return name.endswith(".bias")
    return config.trains == "all" and not is_teacher(name)


def parameter_groups(model: nn.Module, config: TrainingConfig) -> list[dict[str, Any]]:
    """Sort the trained parameters by learning-rate scale, decay and, for muon, by kind."""
    layers = Layers.of(model)
    groups: dict[tuple[float, float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = config.weight_decay if config.decays_all or is_kernel(name, parameter) else 0.0
        scale = config.layer_decay ** (layers.depth + 1 - layers.number(name))
        is_matrix = config.optimizer == "muon" and is_block_matrix(name, parameter)
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
    """Whether a parameter belongs to the classifier, or to the decoder of a dense model."""
    return name.removeprefix(MODEL).split(".", maxsplit=1)[0] in ("head", "distillation_head", "decoder")


def is_patch_projection(name: str) -> bool:
    """Whether a parameter belongs to the projection of patches."""
    return name.removeprefix(MODEL).removeprefix(ENCODER).startswith("patch_projection.")


def is_teacher(name: str) -> bool:
    """Whether a parameter belongs to a module's `teacher`, which averages the trained weights without gradients."""
    return name.split(".", maxsplit=1)[0] == "teacher"


def is_kernel(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter multiplies activations: not a bias, a norm, a token or positions."""
    return parameter.ndim > 1 and name.endswith(".weight") and ".positions." not in f".{name}"


def is_block_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether a parameter is a matrix inside a block, and no table of positions."""
    return parameter.ndim == 2 and place_of(name) is not None and ".positions." not in name


@dataclass(frozen=True)
class Layers:
    """The blocks of a model in order of depth, read from the names of its parameters.

    Blocks are called `blocks.N`, in a pyramid `stages.S.blocks.N` (counted through all stages), in a ResNet the
    stages themselves count. Other parts of a stage, such as its patch embedding, go with its first block, and its
    `norm` with its last.
    """

    blocks: tuple[tuple[int, int], ...]
    """(stage, block), sorted; stage 0 if there are no stages."""

    @classmethod
    def of(cls, model: nn.Module) -> "Layers":
        """Collect the blocks of a model."""
        places = [place for name, _ in model.named_parameters() if (place := place_of(name)) is not None]
        return cls(tuple(sorted({(stage, block) for stage, block in places if block is not None})))

    def number(self, name: str) -> int:
        """Count layers for layer-wise decay: 0 for the embedding, 1... for blocks, depth + 1 for norm and head."""
        place = place_of(name)
        if place is not None:
            stage, block = place
            if block is not None:
                return self.blocks.index((stage, block)) + 1
            own = [number for number, (of, _) in enumerate(self.blocks, start=1) if of == stage]
            if ".norm." in name:
                return own[-1]
            return 0 if own[0] == 1 else own[0]  # the first stage's embedding is that of the model
        return self.depth + 1 if name.removeprefix(MODEL).removeprefix(ENCODER).startswith(LAST) else 0

    @property
    def depth(self) -> int:
        """Count the blocks; a model without any counts as one."""
        return max(len(self.blocks), 1)


def place_of(name: str) -> tuple[int, int | None] | None:
    """Return the stage and block that a parameter belongs to: (0, N) without stages, (S, None) beside the blocks."""
    parts = name.split(".")
    if "stem" in parts:  # a hybrid's ResNet is part of the embedding
        return None
    for i, part in enumerate(parts[:-2]):
        if part == "blocks" and parts[i + 1].isdecimal():
            return 0, int(parts[i + 1])
        if part == "stages" and parts[i + 1].isdecimal():
            stage, after = int(parts[i + 1]), parts[i + 2 :]
            if after[0].isdecimal():  # a unit of a ResNet counts as its stage
                return stage, 0
            return (stage, int(after[1])) if after[0] == "blocks" else (stage, None)
    return None


class DecoupledSGD(torch.optim.SGD):
    """SGD whose weight decay is decoupled: w <- w - lr x wd x w, then the momentum step."""

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        for group in groups:
            group["decoupled_decay"] = group.pop("weight_decay")
        super().__init__(groups, weight_decay=0.0, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Decay, then step; change nothing if `found_inf` flags a gradient with NaN or infinity."""
        is_bad = getattr(self, "found_inf", None)
        for group in self.param_groups:
            if group["decoupled_decay"]:
                factor = 1 - group["lr"] * group["decoupled_decay"]
                kept = factor if is_bad is None else torch.where(is_bad > 0, 1.0, factor)
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
    cooldown: float = 0.2,
) -> float:
    """Return the rate of `step` (from 0): LR = base x decay(progress) x min(1, step / warm-up).

    `progress` runs from 0 at the end of the warm-up to 1 at `total_steps`. `steps` divides by ten at each of
    `boundaries`, shares of the whole run (BiT-HyperRule). `wsd` stays at the peak until the last `cooldown` of the
    run, then falls as 1 - sqrt of the cool-down's progress (arXiv:2405.18392, eq. 1).
    """
    warmup = min(warmup_steps, total_steps)
    progress = min(max((step - warmup) / max(total_steps - warmup, 1), 0.0), 1.0)
    if decay == "cosine":
        rate = end + (peak - end) * (1 + math.cos(math.pi * progress)) / 2
    elif decay == "linear":
        rate = end + (peak - end) * (1 - progress)
    elif decay == "steps":
        rate = peak * 0.1 ** sum(step >= share * total_steps for share in boundaries)
    elif decay == "wsd":
        length = max(cooldown * total_steps, 1)
        rate = peak - (peak - end) * math.sqrt(min(max((step - total_steps + length) / length, 0.0), 1.0))
    else:
        rate = peak
    return rate * min(1.0, step / warmup) if warmup else rate
