"""The phases of a run, applied to its model: image sizes, patches that are kept, and the cost of every phase."""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.data.loading.loader import Batch
from vitrine.errors import ConfigError
from vitrine.models import Model, ModelConfig, ViT, ViTConfig
from vitrine.models.cost import cost_of
from vitrine.models.patch_dropping import require_droppable
from vitrine.models.sizes import require_tiling
from vitrine.recipes.recipe import Recipe
from vitrine.training.phases import WHOLE, Phase, phase_at, steps_of
from vitrine.training.step import Parts

Prepare = Callable[[Batch], Parts]


def with_phases(prepare: Prepare, model: Model, recipe: Recipe) -> Prepare:
    """Resize every batch to its phase's size before it is augmented, and set how many patches the model keeps."""
    if not recipe.phases:
        return prepare
    require_model(model, recipe.phases)
    assert isinstance(model, ViT)
    total_steps = recipe.training.total_steps

    def prepared(batch: Batch) -> Parts:
        phase = phase_at(batch.rows.step, recipe.phases, total_steps=total_steps)
        images = batch.images if phase.size is None else resized(batch.images, phase.size)
        model.num_kept = None if phase.patches == 1 else num_kept(model.config, phase)
        return prepare(dataclasses.replace(batch, images=images))

    return prepared


def require_model(model: Model, phases: tuple[Phase, ...]) -> None:
    """Refuse phases that the model cannot train in."""
    if not isinstance(model, ViT) or model.config.stem is not None:
        raise ConfigError("phases need a ViT without a stem")
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ConfigError("phases need a model without batch norms, whose statistics they would change")
    for phase in phases:
        if phase.size is not None:
            require_tiling((phase.size, phase.size), model.config.token_stride)
        if phase.patches < 1:
            require_droppable(model.config)


def resized(images: Tensor, side: int) -> Tensor:
    """Resize images (B, C, H, W) with values from 0 to 255 to (B, C, side, side); smaller ones are antialiased."""
    if images.shape[2:] == torch.Size([side, side]):
        return images
    return F.interpolate(images.float(), size=(side, side), mode="bilinear", antialias=True)


def num_kept(config: ViTConfig, phase: Phase) -> int:
    """Return the number of patches per image that a phase keeps, at least one."""
    rows, columns = at_size(config, phase).grid_size
    return max(round(phase.patches * rows * columns), 1)


def at_size(config: ViTConfig, phase: Phase) -> ViTConfig:
    """Return the config at the phase's image size."""
    return config if phase.size is None else dataclasses.replace(config, image_size=(phase.size, phase.size))


def cost_of_phase(config: ModelConfig, phase: Phase) -> float:
    """Return the cost of training on one image in a phase, relative to the same without phases."""
    return cost_of_pass(config, phase) * phase.share_of_passes


def cost_of_pass(config: ModelConfig, phase: Phase) -> float:
    """Return the cost of a forward and backward pass on the patches of a phase, relative to all patches.

    Attention to fewer tokens is cheaper still, so this is an upper bound where patches are dropped.
    """
    if not isinstance(config, ViTConfig) or phase == WHOLE:
        return 1.0
    return phase.patches * cost_of(at_size(config, phase)).macs / cost_of(config).macs


def mean_cost(config: ModelConfig, recipe: Recipe, *, done: int) -> float:
    """Return the mean cost per image of the steps after `done`, relative to steps without phases."""
    total = recipe.training.total_steps
    costs, first = 0.0, 0
    for phase, steps in steps_of(recipe.phases or (WHOLE,), total_steps=total):
        costs += max(first + steps - max(first, done), 0) * cost_of_phase(config, phase)
        first += steps
    return costs / max(total - done, 1)
