"""timm's keywords for `create_model`, for code written for timm: each stands for one of our options.

`embed_dim=192` is `width=192`, `mlp_ratio=4` a hidden width of 4 x `width`, `norm_layer` and `act_layer` take a name,
a class of torch or timm, or a partial of one. If a family of models has an option by timm's name, that is used.
"""

import dataclasses
from functools import partial
from typing import Any

from vitrine.errors import ConfigError

RENAMED = {
    "in_chans": "channels",
    "img_size": "image_size",
    "embed_dim": "width",
    "qk_scale": "attention_scale",
    "drop_rate": "head_dropout",
    "pos_drop_rate": "position_dropout",
    "proj_drop_rate": "projection_dropout",
    "attn_drop_rate": "attention_dropout",
    "drop_path_rate": "stochastic_depth",
    "representation_size": "representation_width",
    "distilled": "has_distillation_token",
    "reg_tokens": "num_registers",
    "init_values": "layer_scale",
    "class_token": "has_class_token",
    "fc_norm": "norm_after_pooling",
}
KEYWORDS = (*RENAMED, "mlp_ratio", "norm_layer", "act_layer", "global_pool", "no_embed_class")
POOLINGS = {"token": "class_token", "avg": "average", "map": "attention"}
NORMS = {"layernorm": "layer_norm", "rmsnorm": "rms_norm"}
ACTIVATIONS = {
    "gelu": {"activation": "gelu", "gelu": "erf"},
    "gelutanh": {"activation": "gelu", "gelu": "tanh"},
    "geluerf": {"activation": "gelu", "gelu": "erf"},
    "relu": {"activation": "relu"},
    "silu": {"activation": "silu"},
    "swish": {"activation": "silu"},
    "quickgelu": {"activation": "quick_gelu"},
}


def in_our_words(options: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return options with timm's keywords replaced by ours, for the config of a named model."""
    known = {field.name for field in dataclasses.fields(config)}
    options, width = without_pretrained(options), getattr(config, "width", None)
    if width and "mlp_width" in known and "embed_dim" in options and "mlp_width" not in options:
        options.setdefault("mlp_ratio", config.mlp_width / width)  # timm's models keep the ratio
    ours: dict[str, Any] = {}
    for name, value in options.items():
        if name in known or name not in KEYWORDS:
            meant = {name: value}
        else:
            meant = translated(name, value, width=options.get("embed_dim", options.get("width", width)))
        for option, setting in meant.items():
            if option in ours or (option != name and option in options):
                raise ConfigError(f"{name} and {option} are the same option; give one of them", option=name)
            ours[option] = setting
    return ours


def without_pretrained(options: dict[str, Any]) -> dict[str, Any]:
    """Return options without timm's `pretrained`, which must be false here."""
    if options.get("pretrained"):
        raise ConfigError(
            "create_model draws new weights; load trained ones with vitrine.load, from a file, a folder or a hub id "
            "such as timm/vit_base_patch16_224.augreg_in21k",
            option="pretrained",
        )
    return {name: value for name, value in options.items() if name != "pretrained"}


def translated(name: str, value: Any, *, width: int | None) -> dict[str, Any]:
    """Translate one keyword into our options."""
    if name in RENAMED:
        # timm builds no such layer for 0, and no LayerScale for None.
        return {RENAMED[name]: value or None if name in ("representation_size", "init_values") else value}
    if name == "mlp_ratio":
        if width is None:
            raise ConfigError("mlp_ratio needs a model with one width", option="mlp_ratio")
        return {"mlp_width": int(width * value)}
    if name == "no_embed_class":
        return {"has_prefix_positions": not value}
    if name == "global_pool":
        return {"pooling": chosen(name, value, POOLINGS)}
    if name == "norm_layer":
        return norm_options(value)
    return dict(chosen("act_layer", class_name(value), ACTIVATIONS)) | approximation(value)


def norm_options(layer: Any) -> dict[str, Any]:
    """Read a norm: its kind and, from a partial, its epsilon."""
    options = {"norm": chosen("norm_layer", class_name(layer), NORMS)}
    if isinstance(layer, partial) and "eps" in layer.keywords:
        options["norm_eps"] = layer.keywords["eps"]
    return options


def approximation(layer: Any) -> dict[str, Any]:
    """Read the form of GELU from a partial of torch's."""
    if isinstance(layer, partial) and "approximate" in layer.keywords:
        return {"gelu": "tanh" if layer.keywords["approximate"] == "tanh" else "erf"}
    return {}


def class_name(layer: Any) -> str:
    """Return the name of a class, of a partial's class, or a word, in lower case without underscores."""
    if isinstance(layer, partial):
        layer = layer.func
    return (
        str(layer if isinstance(layer, str) else getattr(layer, "__name__", layer)).lower().replace("_", "")
    )


def chosen(name: str, value: Any, choices: dict[str, Any]) -> Any:
    """Return the option that a word stands for; refuse unknown words."""
    if value not in choices:
        raise ConfigError(f"must be one of {', '.join(choices)}, got {value!r}", option=name)
    return choices[value]
