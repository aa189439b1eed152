"""Adapt weights to another resolution, other channels, other classes or a layout's positions.

Each change reports itself in one sentence.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrine.checkpoints.tensors import Spec
from vitrine.checkpoints.weights import ChangedWeights, Weights
from vitrine.errors import ConfigError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.config import head_width
from vitrine.models.dense.config import DenseConfig
from vitrine.models.families import family_of
from vitrine.models.line_positions import stretched
from vitrine.models.patch_resizing import resized_kernel
from vitrine.models.positions import (
    Factorised,
    Learned1D,
    Learned2D,
    SinCos2D,
    position_tables,
    resample_grid,
    resample_offsets,
)
from vitrine.models.sizes import require_tiling, shown
from vitrine.models.stem_configs import HMlpStemConfig, ResNetStemConfig, StemConfig
from vitrine.spelling import counted

Changed = tuple[Weights, str]
Made = tuple[Spec, Callable[[], Tensor]]


def at_image_size(weights: Weights, image_size: tuple[int, int]) -> Changed:
    """Resample the positions for images of another size."""
    config = weights.config
    if not isinstance(config, ViTConfig):
        return at_size_of_family(weights, image_size)
    require_tiling(image_size, config.token_stride)
    changed = dataclasses.replace(config, image_size=image_size)
    makers, note = resampled_positions(weights, config, changed)
    return ChangedWeights(weights, changed, makers, "resampled"), note


def at_patch_size(weights: Weights, patch: int, *, image_size: tuple[int, int] | None) -> Changed:
    """Resize the patch embedding as in FlexiViT; without a size the nearest one that the patches tile."""
    config = weights.config
    if not isinstance(config, ViTConfig) or config.stem is not None:
        raise ConfigError("only a plain ViT, without a stem, can take other patches", option="patch")
    old, new = config.patch_size, (patch, patch)
    if image_size is None:
        height, width = (max(round(side / patch), 1) * patch for side in config.image_size)
        image_size = height, width
    require_tiling(image_size, new)
    changed = dataclasses.replace(config, patch_size=new, image_size=image_size)
    makers, note = resampled_positions(weights, config, changed)
    kernel = "patch_projection.weight"
    makers[kernel] = remade(weights, kernel, lambda values: resized_kernel(values, new).contiguous())
    what = f"patch embedding resized from {shown(old)} to {patch} px"
    return ChangedWeights(weights, changed, makers, "resized"), f"{what}; {note}" if note else what


def resampled_positions(
    weights: Weights, config: ViTConfig, changed: ViTConfig
) -> tuple[dict[str, Made], str]:
    """Return the tensors of positions for another grid, and a sentence about them."""
    old, new, resampling = config.grid_size, changed.grid_size, config.position_resampling
    slots = config.num_position_slots

    def resampled(table: Tensor) -> Tensor:
        return torch.cat(
            [table[:, :slots], resample_grid(table[:, slots:], old, new, rule=resampling)], dim=1
        )

    # How to resample each kind of table; appendix D.4 has one per model or one per layer.
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "table": resampled,
        "rows": lambda rows: resample_grid(rows, (old[0], 1), (new[0], 1), rule=resampling),
        "columns": lambda columns: resample_grid(columns, (1, old[1]), (1, new[1]), rule=resampling),
    }
    if config.positions == "relative":
        changes["table"] = lambda table: stretched(table, 2 * changed.num_tokens - 1)
    if config.positions == "relative_bias":
        changes["table"] = lambda table: resample_offsets(table, old, new, rule=resampling)
    makers = {
        name: remade(weights, name, changes[name.split(".")[-1]])
        for name in weights.index
        if name.startswith("positions.") and name.split(".")[-1] in changes
    }
    what = f"positions {old[0]}x{old[1]} -> {new[0]}x{new[1]}"
    return makers, f"{what} ({resampling.replace('_', ' ')})" if makers and old != new else ""


def at_size_of_family(weights: Weights, image_size: tuple[int, int]) -> Changed:
    """Adapt a model by the rule of its family, which changes only the config, or also tensors by name."""
    config = weights.config
    family = family_of(config)
    resized, resample = family.resized, family.resample
    changed = (
        dataclasses.replace(config, image_size=image_size) if resized is None else resized(config, image_size)
    )
    makers = (
        {}
        if resample is None
        else {name: remade(weights, name, change) for name, change in resample(config, image_size).items()}
    )
    note = (
        f"{counted(len(makers), 'position table')} resampled for {shown(image_size)} pixels" if makers else ""
    )
    return ChangedWeights(weights, changed, makers, "resampled"), note


def with_channels(weights: Weights, channels: int) -> Changed:
    """Adapt the first kernel: one channel sums the others, more repeat them at the same total strength."""
    if channels < 1:
        raise ConfigError(f"channels must be at least 1, got {channels}")
    config = weights.config
    name = family_of(config).pixel_kernel
    if isinstance(config, ViTConfig) and config.stem:
        name = stem_kernel(config.stem)
    if name is None:
        raise ConfigError(f"cannot adapt a {family_of(config).kind} to other channels", option="channels")
    old = config.channels

    def adapted(kernel: Tensor) -> Tensor:
        if channels == 1:
            return kernel.float().sum(dim=1, keepdim=True).to(kernel.dtype)
        repeated = kernel.repeat(1, math.ceil(channels / old), 1, 1)[:, :channels]
        return (repeated.float() * (old / channels)).to(kernel.dtype)

    what = "summed" if channels == 1 else "repeated and scaled"
    makers = {name: remade(weights, name, adapted)}
    changed = dataclasses.replace(config, channels=channels)
    return ChangedWeights(
        weights, changed, makers, "adapted"
    ), f"patch kernel {what} from {old} to {counted(channels, 'channel')}"


def stem_kernel(stem: StemConfig) -> str:
    """Return the name of the kernel of a stem that reads the image."""
    kernels = {ResNetStemConfig: "stem.root_conv.weight", HMlpStemConfig: "stem.conv_1.weight"}
    if type(stem) not in kernels:
        raise ConfigError("cannot adapt this stem to other channels", option="channels")
    return kernels[type(stem)]


def with_num_classes(weights: Weights, num_classes: int | None) -> Changed:
    """Replace the head and its hidden layer by a new head of zeros; None removes the head."""
    config = weights.config
    if isinstance(config, DenseConfig):
        raise ConfigError(
            f"the classes of a model that outputs {config.answers} are fixed; fine-tune it on {config.answers} "
            "of other classes",
            option="num_classes",
        )
    dtype = next(iter(weights.index.values())).dtype
    options: dict[str, Any] = {"num_classes": num_classes}
    dropped = ""
    if isinstance(config, ViTConfig) and config.representation_width and num_classes:
        options["representation_width"] = None  # section 3.1: the whole pre-training head is removed
        dropped = " and its hidden layer"
    changed: ModelConfig = dataclasses.replace(config, **options)
    width = head_width(changed)
    if num_classes is None:
        return ChangedWeights(weights, changed, {}), "head removed: the model outputs features"
    makers: dict[str, Made] = {}
    heads = ["head"]
    if isinstance(config, ViTConfig) and config.has_distillation_token:
        heads.append("distillation_head")
    for head in heads:
        for kind, shape in (("weight", (num_classes, width)), ("bias", (num_classes,))):
            makers[f"{head}.{kind}"] = (Spec(shape, dtype), partial(torch.zeros, shape, dtype=dtype))
    had = f"head for {config.num_classes} classes" if config.num_classes else "missing head"
    note = f"{had}{dropped} replaced by a new one of zeros for {num_classes}: it must be trained"
    return ChangedWeights(weights, changed, makers, "new"), note


def with_slots(weights: Weights, has_slots: bool) -> Changed:
    """Give class and distillation tokens positions of zero, or add their positions to the tokens: equal sums."""
    config = weights.config
    if not isinstance(config, ViTConfig) or not config.num_prefix_tokens or config.positions != "learned_1d":
        return weights, ""
    if config.has_prefix_positions == has_slots:
        return weights, ""
    changed, table = dataclasses.replace(config, has_prefix_positions=has_slots), "positions.0.table"
    count = config.num_prefix_tokens
    if has_slots:

        def padded(patches: Tensor) -> Tensor:
            return torch.cat([patches.new_zeros(1, count, patches.shape[2]), patches], dim=1)

        makers = {table: remade(weights, table, padded)}
        return ChangedWeights(
            weights, changed, makers, "slot added"
        ), f"{counted(count, 'position slot')} of zero added"
    makers = {table: remade(weights, table, lambda full: full[:, count:].contiguous())}
    tokens = [name for name in ("class_token", "distillation_token") if name in weights.index]
    for slot, name in enumerate(tokens):
        makers[name] = (weights.index[name], partial(merged_token, weights, name, slot))
    return ChangedWeights(
        weights, changed, makers, "slot merged"
    ), f"{counted(count, 'position slot')} merged into the token{'s' * (count != 1)}"


def merged_token(weights: Weights, name: str, slot: int) -> Tensor:
    """Add a token's position to the token."""
    return weights.read(name) + weights.read("positions.0.table")[:, slot : slot + 1]


def with_table(weights: Weights) -> Changed:
    """Write factored or computed positions as one table."""
    config = weights.config
    if (
        not isinstance(config, ViTConfig)
        or config.positions not in ("learned_2d", "factorised", "sincos_1d", "sincos_2d")
        or config.position_placement != "stem"
    ):
        return weights, ""
    changed = dataclasses.replace(config, positions="learned_1d")
    if config.positions == "sincos_1d":  # a table already
        return ChangedWeights(weights, changed, {}), "fixed positions kept as a table"
    dtype = weights.index["patch_projection.weight"].dtype

    def written_out() -> Tensor:
        (module,) = position_tables(config)
        assert isinstance(module, (Factorised, Learned1D, Learned2D, SinCos2D))
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(weights.read(f"positions.0.{name}"))
            table: Tensor = module(config.grid_size)
        return table.detach().to(dtype)

    slots, patches = config.num_position_slots, math.prod(config.grid_size)
    spec = Spec((1, slots + patches, config.width), dtype)
    note = f"{config.positions} positions written out as one table"
    return ChangedWeights(weights, changed, {"positions.0.table": (spec, written_out)}, "written out"), note


def remade(weights: Weights, name: str, make: Callable[[Tensor], Tensor]) -> Made:
    """Describe a tensor that is computed from the one of the same name."""
    old = weights.index[name]
    shape = tuple(make(torch.empty(old.shape, dtype=old.dtype, device="meta")).shape)
    return Spec(shape, old.dtype), lambda: make(weights.read(name))
