"""timm's Eva: EVA (arXiv:2211.07636), EVA-02 (arXiv:2303.11331), EVA-CLIP's image towers, and DINOv3 as timm has it.

The file does not record rotary positions: every published model with SwiGLU or without a position table has them, and
EVA, with a dense MLP and a table, has none.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vitrine.checkpoints.layouts.layout import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
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
from vitrine.errors import CheckpointError
from vitrine.models import ModelConfig, ViTConfig
from vitrine.models.rotary import BASES

EVA = Names(
    patch="patch_embed.proj", class_token="cls_token", registers="reg_token", table="pos_embed", block="blocks.{}.",
    norm_1="norm1", qkv=("attn.qkv",), qkv_biases=("attn.q_bias", "attn.v_bias"), attention_norm="attn.norm",
    out="attn.proj", norm_2="norm2", dense=("mlp.fc1", "mlp.fc2"), gated=("mlp.fc1", "mlp.fc2"), mlp_norm="mlp.norm",
    gains=("gamma_1", "gamma_2"), norm="norm", head="head", projection="head.weight", projection_bias="head.bias",
)  # fmt: skip
APART = ("attn.q_proj", "attn.k_proj", "attn.v_proj")
GATES_APART = ("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2")
PRETRAINING_GRID = (16, 16)
"""The same in every published EVA-02, whatever its image size."""
DINOV3_EPS = 1e-5
POST_NORM_WIDTH = 1792
"""The width of EVA-02 E and EVA02-CLIP-E/14, the only published models with norms after attention and MLP."""
PROJECTIONS = {768: 512, 1024: 768, 1408: 1024}
"""Outputs of the projections of EVA-CLIP's published towers, by width."""


class EvaLayout(NamedLayout):
    """timm's names, as a file of one of its models has them."""

    def wants_slots(self, config: ModelConfig) -> bool | None:
        """EVA-02's table begins with the class token's position; DINOv3 has no table."""
        return True

    def configure(self, index: Index, hints: Hints) -> Configured:
        """Read the config; heads are 64 wide unless config.json says otherwise."""
        arguments = hints.settings.get("model_args") or {}
        kernel = shape_of(index, "patch_embed.proj.weight", hints=hints, axes=4)
        blocks = read_blocks(self.names, index, hints)
        refuse_post_norm(hints, width=kernel[0], is_dense=blocks["mlp"] == "dense")
        has_table, registers, head = "pos_embed" in index, index.get("reg_token"), index.get("head.weight")
        said = arguments.get("global_pool") or hints.settings.get("global_pool")
        pooling = "average" if "fc_norm.weight" in index or said == "avg" else "class_token"
        if said is None and not has_table:
            pooling = "average"  # timm's default for DINOv3
        outputs = head.shape[0] if head else None
        is_tower = is_projection(outputs, hints, width=kernel[0], has_norm=blocks["attention_norm"])
        described = vit_config(
            index,
            hints,
            patch_kernel=kernel,
            table="pos_embed" if has_table else None,
            num_slots=1,
            num_heads=hints.num_heads or arguments.get("num_heads"),
            pooling=pooling,
            has_class_token="cls_token" in index,
            norm_after_pooling="fc_norm.weight" in index,
            positions="learned_1d" if has_table else "none",
            num_registers=registers.shape[1] if registers else 0,
            norm_eps=1e-6 if has_table else DINOV3_EPS,
            gelu="erf",
            position_resampling="bicubic_antialias",
            **last_layer(outputs, is_projection=is_tower),
            **blocks,
            **rotary_options(arguments, has_table=has_table, mlp=blocks["mlp"]),
        )
        if not is_tower:
            return described
        note = f"head with {outputs} outputs read as EVA-CLIP's projection to the space shared with texts"
        return Configured(described.config, (*described.notes, note))

    def refusal(self, config: ModelConfig) -> str | None:
        """Return why timm's Eva cannot hold a model."""
        reason = refuse_odd_vit(
            config, where="timm's Eva", instead="the layout vitrine holds every model",
            poolings=("class_token", "average"), positions=("none", "learned_1d"), rotary=("none", "dinov3", "eva"),
            idle_class_token=True, norm_after_pooling=True, registers=True, layer_scale=True, swiglu=True,
            mlp_norm=True, attention_norm=True, projection=True, projection_bias=True, no_qkv_bias=True,
            no_key_bias=True, only_erf=True,
        )  # fmt: skip
        if reason is not None:
            return reason
        assert isinstance(config, ViTConfig)
        if config.qkv_bias and config.key_bias:
            return "timm's Eva cannot hold a bias of the keys; the layout vitrine can"
        if config.representation_width and (config.num_classes or not config.projection_bias):
            return (
                "timm's Eva has one layer after pooling, with a bias; the layout vitrine can hold a projection "
                "without one or with a head behind it"
            )
        if config.rotary == "none" and config.mlp == "swiglu":
            return (
                "timm's Eva has rotary positions where it has SwiGLU; the layout vitrine can hold it without"
            )
        return None

    def left_out(self, name: str) -> str | None:
        """Recognise what EVA's pre-training leaves in a file."""
        if name == "mask_token" or name.startswith("lm_head."):
            return "only used by masked pre-training"
        return "computed here" if name.startswith("rope.") else None

    def preprocess(self, config: ModelConfig) -> Preprocess:
        """Return timm's preprocessing: CLIP's mean and deviation for EVA-02, ImageNet's for DINOv3."""
        assert isinstance(config, ViTConfig)
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if config.rotary == "dinov3" else (CLIP_MEAN, CLIP_STD)
        is_usual = config.rotary != "dinov3" and max(config.image_size) <= 224
        is_tower = config.attention_norm or config.representation_width is not None
        is_usual = is_usual and not is_tower  # EVA-CLIP's towers see the whole shorter side
        return centre_cropped(config, mean=mean, std=std, crop_fraction=0.9 if is_usual else 1.0)


def recognise(index: Index) -> EvaLayout | None:
    """Recognise timm's Eva by its separate biases or layers, or by gains beside registers."""
    first = "blocks.0."
    if "patch_embed.proj.weight" not in index or f"{first}attn.relative_position_bias_table" in index:
        return None
    apart = f"{first}{APART[0]}.weight" in index
    is_eva = apart or f"{first}{EVA.qkv_biases[0]}" in index if EVA.qkv_biases else False
    if not is_eva and not ("reg_token" in index and f"{first}gamma_1" in index):
        return None
    return eva(
        is_apart=apart, gates_apart=f"{first}mlp.fc1_g.weight" in index, norm_after="fc_norm.weight" in index
    )


def for_model(config: ViTConfig) -> EvaLayout:
    """Return the layout of timm's model of this kind: the larger EVA-02 and DINOv3 keep gates apart."""
    apart = config.mlp_norm
    gates_apart = apart or config.rotary == "dinov3"
    return eva(is_apart=apart, gates_apart=gates_apart, norm_after=config.norm_after_pooling)


def eva(*, is_apart: bool, gates_apart: bool, norm_after: bool) -> EvaLayout:
    """Return timm's names with layers fused or apart."""
    names = dataclasses.replace(
        EVA,
        qkv=APART if is_apart else EVA.qkv,
        qkv_biases=None if is_apart else EVA.qkv_biases,
        gated=GATES_APART if gates_apart else EVA.gated,
        norm="fc_norm" if norm_after else "norm",
    )
    return EvaLayout(names=names, label="timm Eva")


def refuse_post_norm(hints: Hints, *, width: int, is_dense: bool) -> None:
    """Refuse EVA-02 E: its tensors have the names of EVA's, but its blocks compute something else."""
    arguments = hints.settings.get("model_args") or {}
    if arguments.get("use_post_norm") or (is_dense and width == POST_NORM_WIDTH):
        raise CheckpointError(
            f"{hints.path} is an EVA-02 E, which normalises after attention and MLP instead of before; Vitrine has "
            "no such blocks; use EVA02-CLIP-L/14 or a smaller one"
        )


def rotary_options(arguments: Mapping[str, Any], *, has_table: bool, mlp: str) -> dict[str, Any]:
    """Return the options of rotary positions: DINOv3's without a table, EVA-02's with one and SwiGLU."""
    if not has_table:
        return {"rotary": "dinov3", "rotary_rescale": arguments.get("rope_rescale_coords")}
    if mlp == "dense":
        return {}
    return {"rotary": "eva", "rotary_grid": as_grid(arguments.get("ref_feat_shape", PRETRAINING_GRID))}


def last_layer(outputs: int | None, *, is_projection: bool) -> dict[str, Any]:
    """Return the options of the layer after pooling: a head of classes, EVA-CLIP's projection, or none."""
    if outputs is None or not is_projection:
        return {"num_classes": outputs}
    return {
        "num_classes": None,
        "representation_width": outputs,
        "representation_layer": "projection",
        "projection_bias": True,
    }


def is_projection(outputs: int | None, hints: Hints, *, width: int, has_norm: bool) -> bool:
    """Return whether a head is EVA-CLIP's projection: without class names, and as wide as the published one."""
    said = hints.settings
    if outputs is None or said.get("label_names"):
        return False
    if "model_cfg" in said:  # OpenCLIP's
        return bool(outputs == said["model_cfg"].get("embed_dim"))
    is_tower = has_norm or "_clip_" in str(said.get("architecture"))
    return is_tower and outputs == PROJECTIONS.get(width)


def is_eva(config: ViTConfig) -> bool:
    """Return whether, of timm's models, an Eva has such attention: rotary positions, or keys without a bias."""
    has_idle_keys = config.qkv_bias and not config.key_bias and config.positions == "learned_1d"
    return config.rotary != "none" or has_idle_keys


def as_grid(size: Any) -> tuple[int, int] | None:
    """Read a grid that timm states as one number or two."""
    if size is None:
        return None
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def timm_arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """Return the name and arguments with which timm builds such a model."""
    hidden = config.mlp_width / config.width
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": hidden
        if int(config.width * hidden) == config.mlp_width
        else (config.mlp_width + 0.5) / config.width,
        "qkv_bias": config.qkv_bias,
        "init_values": config.layer_scale,
        "class_token": config.reads_class_token,
        "num_reg_tokens": config.num_registers,
        "use_abs_pos_emb": config.positions == "learned_1d",
        "global_pool": "avg" if config.pooling == "average" else "token",
        "use_fc_norm": config.norm_after_pooling,
    }
    if config.attention_norm:
        arguments["scale_attn_inner"] = True
    if config.rotary == "dinov3":
        name = (
            "vit_small_plus_patch16_dinov3_qkvb"
            if config.mlp == "swiglu"
            else "vit_small_patch16_dinov3_qkvb"
        )
        if config.mlp == "swiglu":
            arguments["swiglu_align_to"] = 1  # our width is the aligned one
        arguments["rope_temperature"] = config.rotary_base or BASES["dinov3"]
        return name, arguments
    if config.rotary == "none":
        return "eva_giant_patch14_224", arguments
    arguments["ref_feat_shape"] = list(config.rotary_grid) if config.rotary_grid else None
    if config.mlp_norm:
        return "eva02_base_patch16_clip_224" if config.attention_norm else "eva02_base_patch14_224", arguments
    return "eva02_tiny_patch14_224", arguments


def timm_outputs(config: ModelConfig) -> int:
    """Return the outputs of the layer that timm calls the head: classes, or EVA-CLIP's projection."""
    has_projection = isinstance(config, ViTConfig) and config.projection_bias
    return config.num_classes or (config.representation_width if has_projection else None) or 0
