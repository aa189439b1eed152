"""Write config.json for other libraries: the settings by which transformers and timm build the same model."""

from typing import Any

from vitrine.checkpoints.layouts import beit
from vitrine.checkpoints.layouts.eva import is_eva, timm_arguments, timm_outputs
from vitrine.checkpoints.layouts.huggingface import GELU_NAMES, HuggingFaceLayout
from vitrine.checkpoints.layouts.timm_naflex import is_naflex, naflex_arguments
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import BiTConfig, ModelConfig, PCPVTConfig, PVTv2Config, TNTConfig, ViTConfig
from vitrine.models.pyramid_config import FIRST_STRIDE, PyramidConfig
from vitrine.models.stem_configs import ResNetStemConfig

# timm's models by the units of their stem; any other shape can be passed as arguments.
TIMM_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
TIMM_BITS = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}
TIMM_POOLINGS = {"class_token": "token", "average": "avg", "attention": "map"}
STEM_WIDTH = 64


def hugging_face_settings(
    config: ModelConfig, layout: HuggingFaceLayout, *, classes: tuple[str, ...] | None
) -> dict[str, Any]:
    """Write Hugging Face's config.json for a model that one of its classes can hold."""
    assert isinstance(config, ViTConfig)
    model_type, architecture = {
        "vit": ("vit", "ViTForImageClassification" if config.num_classes else "ViTModel"),
        "deit": ("deit", "DeiTForImageClassificationWithTeacher" if config.num_classes else "DeiTModel"),
        "dinov2": (
            ("dinov2_with_registers", "Dinov2WithRegistersModel")
            if config.num_registers
            else ("dinov2", "Dinov2Model")
        ),
    }[layout.family]
    settings: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "hidden_act": GELU_NAMES[config.gelu],
        "layer_norm_eps": config.norm_eps,
        "image_size": plain_size(config.image_size),
        "patch_size": plain_size(config.patch_size),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "dtype": "float32",
    }
    settings |= dinov2_settings(config) if layout.family == "dinov2" else vit_settings(config)
    return settings | label_settings(config, classes)


def label_settings(config: ModelConfig, classes: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the names of the classes as transformers writes them; nothing without a head."""
    if not config.num_classes:
        return {}
    names = classes or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def dinov2_settings(config: ViTConfig) -> dict[str, Any]:
    """Return the settings that only DINOv2's classes have."""
    # transformers takes two thirds of this times the width, rounded up to a multiple of 8.
    swiglu_ratio = round(1.5 * config.mlp_width / config.width)
    settings = {
        "mlp_ratio": swiglu_ratio if config.mlp == "swiglu" else exact_ratio(config),
        "layerscale_value": config.layer_scale,
        "use_swiglu_ffn": config.mlp == "swiglu",
        "use_mask_token": False,
    }
    return settings | ({"num_register_tokens": config.num_registers} if config.num_registers else {})


def vit_settings(config: ViTConfig) -> dict[str, Any]:
    """Return the settings that the classes of ViT and DeiT have."""
    pooler: dict[str, Any] = {"pooler_output_size": config.representation_width, "pooler_act": "tanh"}
    own = {"intermediate_size": config.mlp_width, "encoder_stride": config.patch_size[0]}
    return own | (pooler if config.representation_width else {})


def timm_settings(
    config: ModelConfig,
    *,
    preprocess: Preprocess,
    classes: tuple[str, ...] | None,
    as_naflex: bool = False,
) -> dict[str, Any]:
    """Write timm's config.json, so that `timm.create_model('local-dir:...')` builds the same model."""
    name, arguments = timm_model(config)
    if as_naflex:
        assert isinstance(config, ViTConfig)
        name, arguments = naflex_arguments(config)
    pooling = TIMM_POOLINGS[config.pooling] if isinstance(config, ViTConfig | TNTConfig) else "avg"
    settings: dict[str, Any] = {
        "architecture": name,
        "num_classes": timm_outputs(config),
        "num_features": config.width if isinstance(config, ViTConfig) else config.representation_width,
        "global_pool": pooling,
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": timm_outputs(config),
            "input_size": [config.channels, *config.image_size],
            "fixed_input_size": not isinstance(config, BiTConfig | PVTv2Config),
            "pool_size": None,
            "crop_pct": preprocess.crop_fraction,
            "crop_mode": "squash" if preprocess.rule == "squash" else "center",
            "interpolation": preprocess.interpolation,
            "mean": list(preprocess.mean),
            "std": list(preprocess.std),
            "first_conv": "embeds.proj" if as_naflex else first_convolution(config),
            "classifier": "head.fc" if isinstance(config, BiTConfig) else "head",
        },
    }
    if classes:
        settings["label_names"] = list(classes)
    return settings


def first_convolution(config: ModelConfig) -> str:
    """Return timm's name of the layer that reads pixels."""
    if isinstance(config, PCPVTConfig):
        return "patch_embeds.0.proj"
    if isinstance(config, TNTConfig):
        return "pixel_embed.proj"
    return "stem.conv" if isinstance(config, BiTConfig) else "patch_embed.proj"


def timm_model(config: ModelConfig) -> tuple[str | None, dict[str, Any]]:
    """Return the name and arguments with which timm builds such a model; no name if timm has none."""
    if isinstance(config, PyramidConfig):
        return timm_pyramid(config)
    if isinstance(config, TNTConfig):
        return "tnt_s_patch16_224", timm_tnt_arguments(config)
    if not isinstance(config, ViTConfig | BiTConfig):
        return None, {"in_chans": config.channels}
    if isinstance(config, BiTConfig):
        known = TIMM_BITS.get((config.units, config.width_factor)) if config.is_published else None
        return known, {"in_chans": config.channels}
    kinds = (
        (config.positions == "relative_bias", beit.timm_arguments),
        (is_naflex(config), naflex_arguments),
        (is_eva(config), timm_arguments),
        (True, timm_vit),
    )
    return next(arguments_of(config) for is_kind, arguments_of in kinds if is_kind)


def timm_vit(config: ViTConfig) -> tuple[str | None, dict[str, Any]]:
    """Return the name and arguments with which timm builds a ViT or hybrid without rotary positions."""
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": exact_ratio(config),
    }
    name: str | None = "vit_base_patch16_224" if config.num_branches == 1 else "vit_small_patch16_18x2_224"
    if config.has_distillation_token:
        name = "deit_base_distilled_patch16_224"
    elif isinstance(config.stem, ResNetStemConfig):
        name = TIMM_HYBRIDS.get(config.stem.units) if config.stem.width == STEM_WIDTH else None
    elif config.mlp == "swiglu":  # timm counts the width of the fused layer
        name, arguments["mlp_ratio"] = "vit_giant_patch14_dinov2", 2 * config.mlp_width / config.width
    elif config.embedding_norm:
        name = "vit_base_patch16_clip_224"
    is_odd = {
        "class_token": (config.reads_class_token, True),
        "global_pool": (TIMM_POOLINGS[config.pooling], "token"),
        "no_embed_class": (not config.has_prefix_positions, False),
        "reg_tokens": (config.num_registers, 0),
        "init_values": (config.layer_scale, None),
        "qkv_bias": (config.qkv_bias, True),
        "qk_norm": (config.qk_norm, False),
        "act_layer": (timm_activation(config), "gelu"),
        "norm_layer": ("rmsnorm" if config.norm == "rms_norm" else None, None),
    }
    if name == "vit_giant_patch14_dinov2":  # its own activation and LayerScale would be changed otherwise
        is_odd["act_layer"] = (None, None)
        arguments["init_values"] = config.layer_scale
    arguments |= {key: value for key, (value, usual) in is_odd.items() if value != usual}
    if config.pooling == "attention" and config.pools_leading_tokens and config.num_leading_tokens:
        arguments["pool_include_prefix"] = True
    if config.pooling == "average":
        arguments["fc_norm"] = config.norm_after_pooling
    return name, arguments


def timm_pyramid(config: PyramidConfig) -> tuple[str | None, dict[str, Any]]:
    """Return the name and arguments with which timm builds a PVT v2 or a PCPVT; it has no PVT v1."""
    arguments: dict[str, Any] = {
        "in_chans": config.channels,
        "depths": list(config.depths),
        "embed_dims": list(config.widths),
        "num_heads": list(config.num_heads),
        "mlp_ratios": list(config.mlp_ratios),
        "sr_ratios": list(config.reductions),
    }
    if isinstance(config, PVTv2Config) and config.first_stride == FIRST_STRIDE:
        linear = {"linear": True} if config.has_linear_attention else {}
        return "pvt_v2_b2", {**arguments, "qkv_bias": config.qkv_bias, **linear}
    if isinstance(config, PCPVTConfig) and config.qkv_bias:
        return "twins_pcpvt_small", {"img_size": list(config.image_size), **arguments}
    return None, {"in_chans": config.channels}


def timm_activation(config: ViTConfig) -> str:
    """Return timm's word for the activation."""
    if config.activation == "gelu":
        return "gelu_tanh" if config.gelu == "tanh" else "gelu"
    return config.activation


def timm_tnt_arguments(config: TNTConfig) -> dict[str, Any]:
    """Return what timm's TNT is built with; its inner MLP is always four times as wide as a word."""
    return {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "inner_dim": config.inner_width,
        "depth": config.depth,
        "num_heads_inner": config.inner_num_heads,
        "num_heads_outer": config.num_heads,
        "mlp_ratio": exact_ratio(config),
        "qkv_bias": config.qkv_bias,
        "global_pool": TIMM_POOLINGS[config.pooling],
    }


def exact_ratio(config: ViTConfig | TNTConfig) -> float:
    """Return the ratio of MLP width to model width whose product, truncated to an integer, is exact."""
    if config.mlp_width % config.width == 0:
        return config.mlp_width // config.width  # transformers 5 accepts only integers for DINOv2
    ratio = config.mlp_width / config.width
    return ratio if int(config.width * ratio) == config.mlp_width else (config.mlp_width + 0.5) / config.width


def plain_size(size: tuple[int, int]) -> int | list[int]:
    """Write a square as one number."""
    return size[0] if size[0] == size[1] else list(size)
