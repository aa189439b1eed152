"""BEiT (arXiv:2106.08254) and BEiT v2 (arXiv:2208.06366): the authors' names, which timm's are, and transformers'.

Attention has a bias for every offset between patches, one table per block or, after pre-training alone, one for all.
Models that were fine-tuned average the patches and then normalise; pre-trained ones have a norm of every token.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrine.checkpoints.layouts.layout import (
    Configured,
    Hints,
    is_square,
    refuse_odd_vit,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.named import NamedLayout, Names, read_blocks
from vitrine.checkpoints.layouts.rules import Rule, rule
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.positions import OFFSETS_OF_LEADING, Grid, RelativeBias, offsets

TABLE = "relative_position_bias_table"
OFFICIAL = Names(
    patch="patch_embed.proj", class_token="cls_token", block="blocks.{}.", norm_1="norm1", qkv=("attn.qkv",),
    qkv_biases=("attn.q_bias", "attn.v_bias"), out="attn.proj", norm_2="norm2", dense=("mlp.fc1", "mlp.fc2"),
    gains=("gamma_1", "gamma_2"), norm="norm", head="head",
)  # fmt: skip
HUGGING_FACE = Names(
    patch="embeddings.patch_embeddings.projection", class_token="embeddings.cls_token",
    block="encoder.layer.{}.", norm_1="layernorm_before",
    qkv=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    out="attention.output.dense", norm_2="layernorm_after", dense=("intermediate.dense", "output.dense"),
    gains=("lambda_1", "lambda_2"), norm="layernorm", head="classifier",
)  # fmt: skip
PREFIXES = ("beit.", "data2vec_vision.", "")
UNUSED = ("mask_token", "embeddings.mask_token", "lm_head.", "cls_pt_layers.", "layernorm.")
OFFICIAL_EPS, HUGGING_FACE_EPS = 1e-6, 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class BEiTLayout(NamedLayout):
    """The encoder, with its head if it has one."""

    own_table: str
    """Name of the table of a block, after the block's own name."""
    shared_table: str
    has_indices: bool = False
    """Whether files contain the row of every pair of tokens beside the tables, as those of the authors do."""

    @property
    def is_hugging_face(self) -> bool:
        """Whether these are the names of transformers."""
        return len(self.names.qkv) > 1

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """There are no absolute positions."""
        return None

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; a table's columns are the heads, and its rows give the grid."""
        names, said = self.names, hints.settings
        kernel = shape_of(index, f"{names.patch}.weight", hints=hints, axes=4)
        is_shared = self.shared_table in index
        table = self.shared_table if is_shared else names.block.format(0) + self.own_table
        if is_shared and names.block.format(0) + self.own_table in index:
            raise CheckpointError(
                f"{hints.path} has both shared positions and positions per block; neither alone"
            )
        rows, heads = shape_of(index, table, hints=hints, axes=2)
        norm_after = names.norm.endswith(("fc_norm", "pooler.layernorm"))
        head = index.get(f"{names.head}.weight")
        return vit_config(
            index,
            hints,
            patch_kernel=kernel,
            table=None,
            grid=grid_of_offsets(rows, kernel[2:], hints=hints),
            num_slots=0,
            num_heads=heads,
            pooling="average" if norm_after else "class_token",
            has_class_token=True,
            norm_after_pooling=norm_after,
            positions="relative_bias",
            position_placement="shared" if is_shared else "every_layer",
            position_resampling="bilinear",
            num_classes=head.shape[0] if head else None,
            gelu="erf",
            norm_eps=float(said.get("layer_norm_eps", HUGGING_FACE_EPS))
            if self.is_hugging_face
            else OFFICIAL_EPS,
            **read_blocks(names, index, hints),
        )

    def rules(self, config: ModelConfig) -> list[Rule]:
        """Declare every tensor."""
        assert isinstance(config, ViTConfig)
        declared = super().rules(config)
        if config.position_placement != "every_layer":
            return [*declared, rule(self.shared_table, "positions.0.table")]
        return declared + [
            rule(self.names.block.format(i) + self.own_table, f"positions.{i}.table")
            for i in range(config.depth)
        ]

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why BEiT's classes cannot hold a model."""
        reason = refuse_odd_vit(
            config, where=self.name, instead="the layout vitrine holds every model",
            poolings=("class_token", "average"), positions=("relative_bias",), idle_class_token=True,
            norm_after_pooling=True, layer_scale=True, no_key_bias=True, no_qkv_bias=True, only_erf=True,
            only_square=True,
        )  # fmt: skip
        if reason is not None:
            return reason
        assert isinstance(config, ViTConfig)
        if config.qkv_bias and config.key_bias:
            return f"{self.name} cannot hold a bias of the keys; the layout vitrine can"
        if (config.pooling == "average") != config.norm_after_pooling or not config.reads_class_token:
            return (
                f"{self.name} normalises after pooling exactly if it averages; the layout vitrine can hold it"
            )
        return None

    def left_out(self, name: str) -> str | None:
        """Recognise what pre-training and the authors' code leave in a file."""
        if name.endswith("relative_position_index"):
            return "computed here"
        inner = name
        for prefix in PREFIXES:
            inner = inner.removeprefix(prefix)
        return "only used by masked pre-training" if inner.startswith(UNUSED) else None

    def constants(self, config: ModelConfig) -> Mapping[str, Tensor]:
        """Return the rows of all pairs of tokens, which the authors' code has in its files."""
        if not self.has_indices:
            return {}
        assert isinstance(config, ViTConfig)
        bias = RelativeBias(config.grid_size, num_heads=1, num_leading_tokens=1, resampling="bilinear")
        index = bias.index(config.grid_size)
        names = [self.shared_table]
        if config.position_placement == "every_layer":
            names = [self.names.block.format(i) + self.own_table for i in range(config.depth)]
        return {name.replace(TABLE, "relative_position_index"): index.clone() for name in names}

    def settings(self, config: ModelConfig) -> dict[str, Any]:
        """Return the config.json of transformers; timm's is written elsewhere."""
        assert isinstance(config, ViTConfig)
        if not self.is_hugging_face:
            return {}
        return {
            "architectures": ["BeitForImageClassification" if config.num_classes else "BeitModel"],
            "model_type": "beit",
            "hidden_size": config.width,
            "intermediate_size": config.mlp_width,
            "num_hidden_layers": config.depth,
            "num_attention_heads": config.num_heads,
            "hidden_act": "gelu",
            "layer_norm_eps": config.norm_eps,
            "image_size": config.image_size[0],
            "patch_size": config.patch_size[0],
            "num_channels": config.channels,
            "use_absolute_position_embeddings": False,
            "use_relative_position_bias": config.position_placement == "every_layer",
            "use_shared_relative_position_bias": config.position_placement != "every_layer",
            "use_mean_pooling": config.pooling == "average",
            "layer_scale_init_value": config.layer_scale or 0.0,
            "dtype": "float32",
        }

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return BEiT's preprocessing: pixels from -1 to 1. BEiT v2 has ImageNet's mean, which files do not say."""
        grey = (0.5,) * config.channels
        return Preprocess(size=config.image_size, interpolation="bicubic", mean=grey, std=grey)


def grid_of_offsets(rows: int, patch: tuple[int, ...], *, hints: Hints) -> Grid:
    """Return the grid whose offsets a table of relative biases has: the hinted size's, or a square."""
    side = (math.isqrt(max(rows - OFFSETS_OF_LEADING, 0)) + 1) // 2
    sizes = [size for size in (hints.image_size, hints.asked_size) if size is not None]
    for grid in [(size[0] // patch[0], size[1] // patch[1]) for size in sizes] + [(side, side)]:
        if min(grid) > 0 and math.prod(offsets(grid)) + OFFSETS_OF_LEADING == rows:
            return grid
    raise CheckpointError(
        f"{hints.path} holds a table of {rows} relative positions, which is not that of a square grid; give the "
        "image size that it was made for"
    )


def recognise(index: Index) -> BEiTLayout | None:
    """Recognise BEiT by its tables, under the authors' names or those of transformers."""
    if "patch_embed.proj.weight" in index:
        is_official = f"blocks.0.attn.{TABLE}" in index or f"rel_pos_bias.{TABLE}" in index
        return official(norm="fc_norm" if "fc_norm.weight" in index else "norm") if is_official else None
    for prefix in PREFIXES:
        layout = hugging_face(prefix=prefix)
        block = layout.names.block.format(0)
        if layout.shared_table in index or block + layout.own_table in index:
            pooled, plain = f"{prefix}pooler.layernorm", f"{prefix}layernorm"
            named = [norm for norm in (pooled, plain, "layernorm") if f"{norm}.weight" in index]
            return hugging_face(prefix=prefix, norm=named[0] if named else plain)
    return None


def official(*, norm: str, has_indices: bool = False) -> BEiTLayout:
    """Return the names of the authors and of timm."""
    return BEiTLayout(
        names=dataclasses.replace(OFFICIAL, norm=norm), label="BEiT", own_table=f"attn.{TABLE}",
        shared_table=f"rel_pos_bias.{TABLE}", has_indices=has_indices,
    )  # fmt: skip


def hugging_face(*, prefix: str, norm: str = "layernorm") -> BEiTLayout:
    """Return the names of transformers; a model with a head has a prefix before all but the head."""
    names = dataclasses.replace(
        HUGGING_FACE, patch=prefix + HUGGING_FACE.patch, class_token=prefix + HUGGING_FACE.class_token,
        block=prefix + HUGGING_FACE.block, norm=norm,
    )  # fmt: skip
    return BEiTLayout(
        names=names, label="Hugging Face BEiT",
        own_table=f"attention.attention.relative_position_bias.{TABLE}",
        shared_table=f"{prefix}encoder.relative_position_bias.{TABLE}",
    )  # fmt: skip


def for_model(config: ViTConfig, *, kind: str) -> BEiTLayout:
    """Return the layout in which `hf`, `timm` or `official` stores a model with relative biases."""
    if kind == "hf":
        prefix = "beit." if config.num_classes else ""
        return hugging_face(
            prefix=prefix, norm=f"{prefix}{'pooler.' if config.norm_after_pooling else ''}layernorm"
        )
    return official(norm="fc_norm" if config.norm_after_pooling else "norm", has_indices=kind == "official")


def timm_arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Return the name and arguments with which timm builds such a model."""
    assert is_square(config)
    is_shared = config.position_placement != "every_layer"
    return "beit_base_patch16_224", {
        "img_size": config.image_size[0],
        "patch_size": config.patch_size[0],
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": (config.mlp_width + 0.5) / config.width,
        "qkv_bias": config.qkv_bias,
        "init_values": config.layer_scale or 0.0,
        "use_rel_pos_bias": not is_shared,
        "use_shared_rel_pos_bias": is_shared,
        "global_pool": "avg" if config.pooling == "average" else "token",
    }
