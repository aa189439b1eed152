"""ViTs whose files differ only in names and in which layers are fused: the names as a record, the rules from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitrine.checkpoints.layouts.layout import Hints, Layout, count, shape_of
from vitrine.checkpoints.layouts.rules import (
    FLAT_PATCHES,
    SAME,
    TRANSPOSED,
    Rule,
    View,
    layer,
    part,
    rule,
)
from vitrine.checkpoints.tensors import Index
from vitrine.models import ModelConfig, ViTConfig

FLAT_TOKEN = View("reshaped", lambda tensor: tensor[0, 0])
FLAT_TABLE = View("reshaped", lambda tensor: tensor[0])
POOLING = "attention_pooling"


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of a ViT's parts in a file; an empty name is a part that it never has."""

    patch: str
    block: str
    """The beginning of a block's names, its number as `{}`."""
    norm_1: str
    qkv: tuple[str, ...]
    """One fused layer, or those of queries, keys and values."""
    qkv_biases: tuple[str, str] | None = None
    """Names of the biases of queries and values, where they are no part of a layer."""
    keeps_masked_bias: bool = False
    """Whether a fused bias has a place for the keys although it counts as zero."""
    attention_norm: str = ""
    """A norm of the mixed values of all heads, before `out`."""
    out: str
    norm_2: str
    dense: tuple[str, str]
    """Both layers of a plain MLP."""
    gated: tuple[str, ...] = ()
    """Layers of a SwiGLU: gates and values fused and the last, or gates, values and the last."""
    mlp_norm: str = ""
    gains: tuple[str, ...] = ()
    class_token: str = ""
    registers: str = ""
    table: str = ""
    embedding_norm: str = ""
    norm: str
    pooling: Mapping[str, str] = field(default_factory=dict)
    """Parts of attention pooling by our names; `to_qkv` is fused."""
    projection: str = ""
    projection_bias: str = ""
    is_projection_transposed: bool = False
    head: str = ""
    has_flat_patches: bool = False
    """Whether the patch embedding is a dense layer of flat patches, channels last."""
    is_flat: bool = False
    """Whether token and table have no axes of length one."""


def vit_rules(names: Names, config: ViTConfig) -> list[Rule]:
    """Declare every tensor of a model."""
    declared = with_bias(names.patch, "patch_projection", has_bias=config.patch_bias)
    if names.has_flat_patches:
        declared[0] = rule(f"{names.patch}.weight", "patch_projection.weight", FLAT_PATCHES)
    if config.reads_class_token:
        declared.append(rule(names.class_token, "class_token", FLAT_TOKEN if names.is_flat else SAME))
    if config.num_registers:
        declared.append(rule(names.registers, "registers"))
    if config.positions == "learned_1d":
        declared.append(rule(names.table, "positions.0.table", FLAT_TABLE if names.is_flat else SAME))
    if config.embedding_norm:
        declared += layer(names.embedding_norm, "embedding_norm")
    for i in range(config.depth):
        declared += block_rules(names, config, theirs=names.block.format(i), ours=f"blocks.{i}")
    declared += layer(names.norm, "norm")
    if config.pooling == "attention":
        declared += pooling_rules(names)
    if config.representation_width:
        view = TRANSPOSED if names.is_projection_transposed else SAME
        declared.append(rule(names.projection, "representation.weight", view))
        if config.projection_bias:
            declared.append(rule(names.projection_bias, "representation.bias"))
    if config.num_classes:
        declared += layer(names.head, "head")
    return declared


def block_rules(names: Names, config: ViTConfig, *, theirs: str, ours: str) -> list[Rule]:
    """Declare one encoder layer."""
    declared = [*layer(theirs + names.norm_1, f"{ours}.norm_1")]
    declared += qkv_rules(names, config, theirs=theirs, ours=f"{ours}.attention.to_qkv")
    if config.attention_norm:
        declared += layer(theirs + names.attention_norm, f"{ours}.attention.norm")
    declared += layer(theirs + names.out, f"{ours}.attention.to_out")
    declared += layer(theirs + names.norm_2, f"{ours}.norm_2")
    layers = names.gated if config.mlp == "swiglu" else names.dense
    if len(layers) == 2:
        declared += layer(theirs + layers[0], f"{ours}.mlp.expand")
    else:
        for i in (0, 1):
            for kind in ("weight", "bias"):
                declared.append(
                    rule(f"{theirs}{layers[i]}.{kind}", f"{ours}.mlp.expand.{kind}", part(i, of=2))
                )
    if config.mlp_norm:
        declared += layer(theirs + names.mlp_norm, f"{ours}.mlp.norm")
    declared += layer(theirs + layers[-1], f"{ours}.mlp.contract")
    if config.layer_scale is not None:
        declared += [rule(theirs + names.gains[k], f"{ours}.scale_{k + 1}.gain") for k in (0, 1)]
    return declared


def qkv_rules(names: Names, config: ViTConfig, *, theirs: str, ours: str) -> list[Rule]:
    """Declare queries, keys and values; a bias of the keys only where they have one."""
    apart = list(zip((0, 2), names.qkv_biases or (), strict=False))
    if len(names.qkv) == 3:
        declared = [
            rule(f"{theirs}{name}.weight", f"{ours}.weight", part(i, of=3))
            for i, name in enumerate(names.qkv)
        ]
        inside = [(i, f"{name}.bias") for i, name in enumerate(names.qkv) if i != 1 or config.key_bias]
        biased = apart or inside
    else:
        fused = names.qkv[0] if "*" in names.qkv[0] else f"{names.qkv[0]}.*"
        declared = [rule(theirs + fused.replace("*", "weight"), f"{ours}.weight")]
        if config.qkv_bias and (config.key_bias or names.keeps_masked_bias):
            return [*declared, rule(theirs + fused.replace("*", "bias"), f"{ours}.bias")]
        biased = apart
    if config.qkv_bias:
        declared += [rule(theirs + name, f"{ours}.bias", part(i, of=3)) for i, name in biased]
    return declared


def pooling_rules(names: Names) -> list[Rule]:
    """Declare attention pooling, in the file one fused layer for the query and the tokens."""
    declared = [rule(names.pooling["probe"], f"{POOLING}.probe")]
    for kind in ("weight", "bias"):
        both = (f"{POOLING}.to_q.{kind}", f"{POOLING}.to_kv.{kind}")
        declared.append(Rule(names.pooling["to_qkv"].replace("*", kind), both, SAME, is_joined=True))
    for ours in ("to_out", "norm", "mlp.expand", "mlp.contract"):
        declared += layer(names.pooling[ours], f"{POOLING}.{ours}")
    return declared


def with_bias(theirs: str, ours: str, *, has_bias: bool) -> list[Rule]:
    """Declare a layer that may have no bias."""
    return layer(theirs, ours) if has_bias else layer(theirs, ours)[:1]


def read_blocks(names: Names, index: Index, hints: Hints) -> dict[str, Any]:
    """Read from names and shapes what the blocks of a file say."""
    first = names.block.format(0)
    pattern = names.block.replace(".", r"\.").format(r"(\d+)")
    is_gated = bool(names.gated) and f"{first}{names.gated[0]}.weight" in index
    if is_gated and len(names.gated) == 2:  # of the same names as in a plain MLP: shapes tell
        wide, last = (shape_of(index, f"{first}{name}.weight", hints=hints, axes=2) for name in names.gated)
        is_gated = wide[0] == 2 * last[1]
    contract = names.gated[-1] if is_gated else names.dense[-1]
    fused = names.qkv[0] if "*" in names.qkv[0] else f"{names.qkv[0]}.*"
    fused_bias = first + fused.replace("*", "bias")
    separate = (first + names.qkv_biases[0]) if names.qkv_biases else fused_bias
    keys = f"{first}{names.qkv[1]}.bias" if len(names.qkv) == 3 else fused_bias
    has_bias = fused_bias in index or separate in index
    return {
        "depth": count(index, pattern),
        "mlp_width": shape_of(index, f"{first}{contract}.weight", hints=hints, axes=2)[1],
        "mlp": "swiglu" if is_gated else "dense",
        "mlp_norm": bool(names.mlp_norm) and f"{first}{names.mlp_norm}.weight" in index,
        "attention_norm": bool(names.attention_norm) and f"{first}{names.attention_norm}.weight" in index,
        "qkv_bias": has_bias,
        "key_bias": not has_bias or (keys in index and not names.keeps_masked_bias),
        "layer_scale": 1e-5 if names.gains and first + names.gains[0] in index else None,
    }


@dataclass(frozen=True, kw_only=True)
class NamedLayout:
    """A layout described by its names; each family derives one that reads its config and refuses other models."""

    names: Names
    label: str

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return self.label

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """Whether the class token has a position of its own."""
        return True

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, ViTConfig)
        return vit_rules(self.names, config)

    def constants(self, config: ModelConfig) -> Mapping[str, Tensor]:
        """Return tensors that the library's code needs in the file beside the weights."""
        return {}

    def settings(self, config: ModelConfig) -> dict[str, Any]:
        """Return the library's config.json; an empty one if the layout has none."""
        return {}


def takes_flat_patches(layout: Layout) -> bool:
    """Return whether the library's model takes pictures at their own aspect ratio, cut into patches."""
    return isinstance(layout, NamedLayout) and layout.names.has_flat_patches
