"""The parts of timm's ViTs, which other layouts share: blocks, parallel branches, a hybrid's ResNet, positions."""

import math
from collections.abc import Mapping
from typing import Any

from vitrine.checkpoints.layouts.layout import (
    Hints,
    count,
    shape_of,
)
from vitrine.checkpoints.layouts.rules import Rule, layer, rule
from vitrine.checkpoints.tensors import Index
from vitrine.errors import CheckpointError
from vitrine.models import ViTConfig
from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.models.timm_keywords import ACTIVATIONS
from vitrine.spelling import counted

STEM = "patch_embed.backbone."
# timm's group norm and weight standardisation (which adds to the variance).
STEM_NUMERICS = {"norm_eps": 1e-5, "standardisation_std_eps": 0.0, "standardisation_variance_eps": 1e-8}
BLOCK = {
    "norm_1": "norm1", "attention": "attn", "scale_1": "ls1.gamma",
    "norm_2": "norm2", "mlp": "mlp", "scale_2": "ls2.gamma",
}  # fmt: skip
"""timm's names of the parts of a block."""


def block_rules(config: ViTConfig, *, theirs: str, ours: str) -> list[Rule]:
    """Declare one encoder layer, or its parallel branches."""
    declared = []
    for j in range(config.num_branches):
        names, our_block = (
            (BLOCK, ours) if config.num_branches == 1 else (branch_names(j), f"{ours}.branches.{j}")
        )
        declared += named_rules(config, names, theirs=theirs, ours=our_block)
    return declared


def branch_names(branch: int) -> dict[str, str]:
    """Return timm's names of one of several parallel branches."""
    attention, mlp = f"attns.{branch}.", f"ffns.{branch}."
    return {
        "norm_1": f"{attention}norm", "attention": f"{attention}attn", "scale_1": f"{attention}ls.gamma",
        "norm_2": f"{mlp}norm", "mlp": f"{mlp}mlp", "scale_2": f"{mlp}ls.gamma",
    }  # fmt: skip


def named_rules(config: ViTConfig, names: Mapping[str, str], *, theirs: str, ours: str) -> list[Rule]:
    """Declare attention and MLP of a layer, or of one of its branches, by the file's names of their parts."""
    attention, mlp = names["attention"], names["mlp"]
    declared = [
        *norm_rules(config, f"{theirs}.{names['norm_1']}", f"{ours}.norm_1"),
        *layer(f"{theirs}.{attention}.qkv", f"{ours}.attention.to_qkv"),
        *layer(f"{theirs}.{attention}.proj", f"{ours}.attention.to_out"),
        *norm_rules(config, f"{theirs}.{names['norm_2']}", f"{ours}.norm_2"),
        *layer(f"{theirs}.{mlp}.{names.get('expand', 'fc1')}", f"{ours}.mlp.expand"),
        *layer(f"{theirs}.{mlp}.{names.get('contract', 'fc2')}", f"{ours}.mlp.contract"),
    ]
    if not config.qkv_bias:
        declared = [one for one in declared if one.theirs != f"{theirs}.{attention}.qkv.bias"]
    if config.qk_norm:
        declared += norm_rules(config, f"{theirs}.{attention}.q_norm", f"{ours}.attention.q_norm")
        declared += norm_rules(config, f"{theirs}.{attention}.k_norm", f"{ours}.attention.k_norm")
    if config.layer_scale is not None:
        declared += [rule(f"{theirs}.{names[f'scale_{k}']}", f"{ours}.scale_{k}.gain") for k in (1, 2)]
    return declared


def norm_rules(config: ViTConfig, theirs: str, ours: str) -> list[Rule]:
    """Declare a norm; RMSNorm has no bias."""
    declared = layer(theirs, ours)
    return declared if config.norm == "layer_norm" else declared[:1]


def stem_rules(config: ViTConfig) -> list[Rule]:
    """Declare a hybrid's ResNet; a root alone is the backbone itself."""
    if not isinstance(config.stem, ResNetStemConfig):
        return []
    root = f"{STEM}stem." if config.stem.units else STEM
    declared = [rule(f"{root}conv.weight", "stem.root_conv.weight"), *layer(f"{root}norm", "stem.root_norm")]
    for i, num_units in enumerate(config.stem.units):
        for j in range(num_units):
            theirs, ours = f"{STEM}stages.{i}.blocks.{j}", f"stem.stages.{i}.{j}"
            for k in (1, 2, 3):
                declared.append(rule(f"{theirs}.conv{k}.weight", f"{ours}.conv_{k}.weight"))
                declared += layer(f"{theirs}.norm{k}", f"{ours}.norm_{k}")
            if j == 0:
                declared.append(rule(f"{theirs}.downsample.conv.weight", f"{ours}.shortcut.0.weight"))
                declared += layer(f"{theirs}.downsample.norm", f"{ours}.shortcut.1")
    return declared


def read_stem(index: Index, hints: Hints) -> tuple[ResNetStemConfig | None, int | None]:
    """Return a hybrid's stem and the image's channels, or nothing for a plain ViT."""
    root = next((f"{r}conv.weight" for r in (f"{STEM}stem.", STEM) if f"{r}conv.weight" in index), None)
    if root is None:
        return None, None
    width, channels, _, _ = shape_of(index, root, hints=hints, axes=4)
    stages = count(index, rf"{STEM}stages\.(\d+)\.")
    units = tuple(count(index, rf"{STEM}stages\.{i}\.blocks\.(\d+)\.") for i in range(stages))
    return ResNetStemConfig(units=units, width=width, **STEM_NUMERICS), channels  # type: ignore[arg-type]


def position_slots(index: Index, *, prefix: int, kernel: tuple[int, ...], stride: int, hints: Hints) -> int:
    """Return whether class and distillation token have positions: only one choice leaves a complete grid."""
    if "pos_embed" not in index or not prefix:
        return 0
    rows = shape_of(index, "pos_embed", hints=hints, axes=3)[1]
    for size in (hints.image_size, None, hints.asked_size):
        if size is None:
            if is_square(rows - prefix) or is_square(rows):
                return prefix if is_square(rows - prefix) else 0
            continue
        patches = math.prod(s // (k * stride) for s, k in zip(size, kernel[2:], strict=True))
        if rows in (patches, patches + prefix):
            return rows - patches
    raise CheckpointError(
        f"{hints.path} holds pos_embed with {rows} rows, which is not a square grid with or without "
        f"{counted(prefix, 'slot')} before it; give the image size that it was made for"
    )


def activation_of(hints: Hints) -> dict[str, Any]:
    """Return the activation: the exact GELU, unless config.json, the architecture or the graph says otherwise."""
    arguments = hints.settings.get("model_args") or {}
    said = str(arguments.get("act_layer") or "gelu").replace("_", "")
    architecture = str(hints.settings.get("architecture") or "")
    if said not in ACTIVATIONS:
        raise CheckpointError(
            f"{hints.path} has the unknown activation {said!r}; known: {', '.join(ACTIVATIONS)}"
        )
    if ("siglip" in architecture and "act_layer" not in arguments) or hints.metadata.get("gelu") == "tanh":
        return ACTIVATIONS["gelutanh"]
    return ACTIVATIONS[said]


def is_square(number: int) -> bool:
    """Return whether a number of patches makes a square grid."""
    return number > 0 and math.isqrt(number) ** 2 == number
