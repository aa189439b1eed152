"""Our own names, for models that no other layout can hold."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vitrine.checkpoints.layouts.bit_npz import bit_config
from vitrine.checkpoints.layouts.layout import Configured, Hints, count, shape_of, vit_config
from vitrine.checkpoints.layouts.rules import Rule, rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import Model, ModelConfig, build
from vitrine.models.stem_configs import ResNetStemConfig, StemConfig, TokensToTokenConfig

# Side of the kernel of the root in the paper's hybrids.
PUBLISHED_ROOT = 7


@dataclass(frozen=True, kw_only=True)
class NativeLayout:
    """The names of the model's own parameters."""

    @property
    def name(self) -> str:
        """The layout's name in reports."""
        return "Vitrine"

    def wants_slots(self, config: ModelConfig) -> None:
        """Both are possible."""
        return

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config from a bare state dict of ours; numerics are then the paper's."""
        head, hidden = index.get("head.bias"), index.get("representation.bias")
        num_classes = head.shape[0] if head else None
        if "root_conv.weight" in index:
            width, channels, units = read_resnet(index, hints, prefix="")
            return bit_config(
                hints, units=units, root_width=width, channels=channels, num_classes=num_classes
            )
        require_known_parts(index, hints)
        kernel = shape_of(index, "patch_projection.weight", hints=hints, axes=4)
        stem: StemConfig | None = None
        channels = kernel[1]
        if "stem.root_conv.weight" in index:
            width, channels, units = read_resnet(index, hints, prefix="stem.")
            side = shape_of(index, "stem.root_conv.weight", hints=hints, axes=4)[2]
            stem = ResNetStemConfig(units=units, width=width, root="7x7" if side == PUBLISHED_ROOT else "3x3")
        published: dict[str, Any] = {}
        if "stem.layers.0.norm_1.weight" in index:
            stem, channels = read_tokens_to_token(index, hints)
            published = {"gelu": "erf", "norm_eps": stem.norm_eps, "position_resampling": "bicubic"}
        registers, has_token = index.get("registers"), "class_token" in index
        has_table, num_pegs = "positions.0.table" in index, count(index, r"positions\.(\d+)\.mix\.")
        if num_pegs:  # after the first blocks, as in CPVT; `options` can say otherwise
            published = {"gelu": "erf", "peg_layers": tuple(range(num_pegs))}
        table_kind = "sincos_1d" if isinstance(stem, TokensToTokenConfig) else "learned_1d"
        pooling = "class_token" if has_token else "average"
        return vit_config(
            index,
            hints,
            patch_kernel=kernel,
            table="positions.0.table" if has_table else None,
            depth=count(index, r"blocks\.(\d+)\."),
            num_slots=int(has_token) + int("distillation_token" in index),
            num_heads=None,
            channels=channels,
            stem=stem,
            mlp_width=shape_of(index, "blocks.0.mlp.expand.weight", hints=hints, axes=2)[0],
            pooling="attention" if "attention_pooling.probe" in index else pooling,
            has_class_token=has_token,
            has_distillation_token="distillation_token" in index,
            num_registers=registers.shape[1] if registers else 0,
            positions=table_kind if has_table else "peg" if num_pegs else "none",
            representation_width=hidden.shape[0] if hidden else None,
            num_classes=num_classes,
            layer_scale=1e-5 if "blocks.0.scale_1.gain" in index else None,
            qkv_bias="blocks.0.attention.to_qkv.bias" in index,
            qk_norm="blocks.0.attention.q_norm.weight" in index,
            **published,
        )

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every parameter under its own name."""
        return [rule(name, name) for name in empty_state(config)]

    def refusal(self, config: ModelConfig) -> str | None:
        """Hold everything."""
        return None

    def left_out(self, name: str) -> str | None:
        """Expect nothing but the model."""
        return None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the paper's preprocessing."""
        return Preprocess(size=config.image_size, mean=(0.5,) * config.channels, std=(0.5,) * config.channels)


def read_resnet(index: Index, hints: Hints, *, prefix: str) -> tuple[int, int, tuple[int, ...]]:
    """Return the width, the image's channels and the units of each stage of a ResNet or a hybrid's stem."""
    width, channels, _, _ = shape_of(index, f"{prefix}root_conv.weight", hints=hints, axes=4)
    stages = rf"{re.escape(prefix)}stages\."
    units = tuple(count(index, rf"{stages}{i}\.(\d+)\.") for i in range(count(index, rf"{stages}(\d+)\.")))
    return width, channels, units


def read_tokens_to_token(index: Index, hints: Hints) -> tuple[TokensToTokenConfig, int]:
    """Return a tokens-to-token stem, split as in every published T2T-ViT, and the image's channels."""
    stem = TokensToTokenConfig(
        mixing="performer" if "stem.layers.0.features" in index else "transformer",
        token_width=shape_of(index, "stem.layers.0.to_out.weight", hints=hints, axes=2)[0],
    )
    gathered = shape_of(index, "stem.layers.0.norm_1.weight", hints=hints, axes=1)[0]
    return stem, gathered // stem.kernels[0] ** 2


def recognise(index: Index) -> NativeLayout | None:
    """Recognise our own names."""
    first = (
        "blocks.0.attention.to_qkv.weight",
        "blocks.0.branches.0.attention.to_qkv.weight",
        "stages.0.0.norm_1.weight",
    )
    if any(name in index for name in first):
        return NativeLayout()
    return None


@lru_cache(maxsize=4)
def empty_state(config: ModelConfig) -> Mapping[str, Tensor]:
    """Return the tensors of a model, with shapes and no memory."""
    return empty_model(config).state_dict()


def empty_model(config: ModelConfig) -> Model:
    """Build a model on the meta device: shapes, no memory."""
    with torch.device("meta"):
        return build(config)


def require_known_parts(index: Index, hints: Hints) -> None:
    """Refuse positions, blocks or norms of a kind that the names of tensors do not determine."""
    of_parts = (
        "positions.0.rows",
        "positions.1.table",
        "patch_norm.weight",
        "blocks.0.branches.0.norm_1.weight",
    )
    if any(name in index for name in of_parts) or "norm.bias" not in index:
        raise CheckpointError(
            f"the names of tensors in {hints.path} do not determine its positions, blocks or norms; "
            "the config.json that was saved with it is needed"
        )
