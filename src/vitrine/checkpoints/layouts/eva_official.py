"""The authors' own files of EVA-02 (arXiv:2303.11331) and of EVA-CLIP's image towers (arXiv:2303.15389).

The larger models ("sub-LN") have layers of queries, keys and values apart and a norm inside the MLP; EVA-CLIP's have
one of the mixed values too. Files contain the cosines and sines of their own grid, once for the model and once per
block, which are computed here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrine.checkpoints.layouts.clip import OF_TEXT
from vitrine.checkpoints.layouts.eva import (
    APART,
    PRETRAINING_GRID,
    last_layer,
    refuse_post_norm,
    rotary_options,
)
from vitrine.checkpoints.layouts.layout import (
    CLIP_MEAN,
    CLIP_STD,
    Configured,
    Hints,
    refuse_odd_vit,
    shape_of,
    vit_config,
)
from vitrine.checkpoints.layouts.named import NamedLayout, Names, read_blocks
from vitrine.checkpoints.layouts.preprocessing import centre_cropped
from vitrine.checkpoints.tensors import Index
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.rotary import RotaryPositions

NAMES = Names(
    patch="patch_embed.proj", class_token="cls_token", table="pos_embed", block="blocks.{}.", norm_1="norm1",
    qkv=("attn.qkv",), qkv_biases=("attn.q_bias", "attn.v_bias"), attention_norm="attn.inner_attn_ln",
    out="attn.proj", norm_2="norm2", dense=("mlp.fc1", "mlp.fc2"), gated=("mlp.w12", "mlp.w3"),
    mlp_norm="mlp.ffn_ln", gains=("gamma_1", "gamma_2"), norm="norm", head="head", projection="head.weight",
    projection_bias="head.bias",
)  # fmt: skip
GATES_APART = ("mlp.w1", "mlp.w2", "mlp.w3")
TOWER = "visual."
"""The beginning of the image tower's names in a file of EVA-CLIP."""
COSINES = "rope.freqs_cos"
TABLES = (COSINES, "rope.freqs_sin")
UNUSED = ("mask_token", "lm_head.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaOfficialLayout(NamedLayout):
    """The authors' names."""

    is_tower: bool
    """Whether it is EVA-CLIP's image tower, whose head is a projection."""
    prefix: str = ""

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; the cosines of rotary positions are as wide as a head."""
        names = self.names
        kernel = shape_of(index, f"{names.patch}.weight", hints=hints, axes=4)
        shape_of(index, names.table, hints=hints, axes=3)
        blocks = read_blocks(names, index, hints)
        refuse_post_norm(hints, width=kernel[0], is_dense=blocks["mlp"] == "dense")
        head, cosines = index.get(names.projection), index.get(self.prefix + COSINES)
        heads = hints.num_heads
        if heads is None and cosines is not None and cosines.shape[-1]:
            heads = kernel[0] // cosines.shape[-1]
        norms_mean = names.norm.endswith("fc_norm")
        is_pretrained = head is None and not self.is_tower and not norms_mean
        averages = is_pretrained or norms_mean
        described = vit_config(
            index,
            hints,
            patch_kernel=kernel,
            table=names.table,
            num_slots=1,
            num_heads=heads,
            pooling="average" if averages else "class_token",
            has_class_token=True,
            norm_after_pooling=averages,
            gelu="erf",
            position_resampling="bicubic_antialias",
            **last_layer(head.shape[0] if head else None, is_projection=self.is_tower),
            **blocks,
            **rotary_options({}, has_table=True, mlp=blocks["mlp"]),
        )
        if not is_pretrained:
            return described
        note = (
            "masked pre-training has no pooling: patches are averaged, then normalised, as in timm's EVA-02"
        )
        return Configured(described.config, (*described.notes, note))

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why the authors' classes cannot hold a model."""
        reason = refuse_odd_vit(
            config, where=self.name, instead="the layout vitrine holds every model",
            poolings=("class_token", "average"), positions=("learned_1d",), rotary=("none", "eva"),
            idle_class_token=True, norm_after_pooling=True, layer_scale=True, swiglu=True, mlp_norm=True,
            attention_norm=True, projection=True, projection_bias=True, no_key_bias=True, only_erf=True,
            only_square=True,
        )  # fmt: skip
        if reason is not None:
            return reason
        assert isinstance(config, ViTConfig)
        is_rotary = config.rotary == "eva"
        has_projection = config.representation_width is not None
        wants = {
            "a bias of the keys": config.key_bias,
            "average pooling": self.is_tower and config.pooling == "average",
            "a norm after pooling without average pooling, or the reverse": config.norm_after_pooling
            != (config.pooling == "average"),
            "no class token": not config.reads_class_token,
            "SwiGLU without rotary positions, or the reverse": (config.mlp == "swiglu") != is_rotary,
            f"rotary positions stretched to {config.rotary_grid}": is_rotary
            and config.rotary_grid != PRETRAINING_GRID,
            f"rotary positions of base {config.rotary_base}": config.rotary_base is not None,
            "a norm in one of attention and MLP alone": self.is_tower
            and config.attention_norm != config.mlp_norm,
            "a head beside its projection": self.is_tower and config.num_classes is not None,
            "a projection without a bias": has_projection and not config.projection_bias,
        }  # fmt: skip
        reasons = (what for what, is_wanted in wants.items() if is_wanted)
        return next((f"{self.name} cannot hold {what}; the layout vitrine can" for what in reasons), None)

    def left_out(self, name: str) -> str | None:
        """Recognise the text tower, the tables of rotary positions and the rest of masked pre-training."""
        if self.is_tower and name.startswith(OF_TEXT):
            return "of the text tower"
        inner = name.removeprefix(self.prefix)
        if inner.endswith(TABLES):
            return "computed here"
        return "only used by masked pre-training" if inner.startswith(UNUSED) else None

    def constants(self, config: ModelConfig) -> Mapping[str, Tensor]:
        """Return the tables of rotary positions, without which the authors' classes do not load a file strictly."""
        assert isinstance(config, ViTConfig)
        if config.rotary != "eva":
            return {}
        turns = RotaryPositions(config).table[:, 0, 0, config.num_leading_tokens :]  # (2, N, K)
        places = [self.prefix, *(f"{self.names.block.format(i)}attn." for i in range(config.depth))]
        return {place + TABLES[k]: turns[k].clone() for place in places for k in (0, 1)}

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return the preprocessing with which the authors evaluate: CLIP's statistics, the whole shorter side."""
        return centre_cropped(config, mean=CLIP_MEAN, std=CLIP_STD)


def recognise(index: Index) -> EvaOfficialLayout | None:
    """Recognise the authors' names of EVA-02, and EVA-CLIP's image tower in a whole file or alone."""
    for prefix in (TOWER, ""):
        first = f"{prefix}blocks.0."
        has_norm = f"{first}{NAMES.attention_norm}.weight" in index
        if prefix == TOWER:  # always the class token's; a classifier under such a name averages the patches
            is_known = f"{prefix}norm.weight" in index
        else:
            is_known = has_norm or f"{first}mlp.w3.weight" in index
        # timm's layers that are apart have their biases inside.
        if is_known and f"{prefix}patch_embed.proj.weight" in index and f"{first}attn.q_bias" in index:
            return official(
                is_tower=has_norm or prefix == TOWER,
                prefix=prefix,
                is_apart=f"{first}{APART[0]}.weight" in index,
                gates_apart=f"{first}{GATES_APART[0]}.weight" in index,
                norm_after=f"{prefix}fc_norm.weight" in index,
            )
    return None


def for_model(config: ViTConfig) -> EvaOfficialLayout:
    """Return the layout in which the authors store a model of this kind."""
    is_tower = config.attention_norm or config.representation_width is not None
    return official(
        is_tower=is_tower, prefix=TOWER if is_tower else "", is_apart=config.mlp_norm, gates_apart=config.mlp_norm,
        norm_after=config.norm_after_pooling,
    )  # fmt: skip


def official(
    *, is_tower: bool, prefix: str, is_apart: bool, gates_apart: bool, norm_after: bool
) -> EvaOfficialLayout:
    """Return the authors' names, behind a prefix, with layers fused or apart."""
    changed: dict[str, Any] = {
        part: prefix + getattr(NAMES, part)
        for part in ("patch", "class_token", "table", "block", "head", "projection", "projection_bias")
    }
    names = dataclasses.replace(
        NAMES,
        **changed,
        qkv=APART if is_apart else NAMES.qkv,
        gated=GATES_APART if gates_apart else NAMES.gated,
        norm=prefix + ("fc_norm" if norm_after else "norm"),
    )
    return EvaOfficialLayout(
        names=names, label="EVA-CLIP" if is_tower else "EVA", is_tower=is_tower, prefix=prefix
    )
