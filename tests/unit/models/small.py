"""One small model of every kind, for the checks that all of them must pass."""

from torch import nn

from vitrine.models import Model, create_model, register_cnn
from vitrine.models.cnn_stem import CNNS
from vitrine.models.stem_configs import ResNetStemConfig, TokensToTokenConfig


def two_convolutions(channels: int) -> nn.Module:
    """A network with a stride of 4."""
    first = nn.Conv2d(channels, 8, 3, stride=2, padding=1)
    return nn.Sequential(first, nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1))


if "two convolutions" not in CNNS:  # pytest may import this file under two names
    register_cnn("two convolutions", two_convolutions)

SHAPE = {"width": 32, "depth": 3, "num_heads": 4, "mlp_width": 48, "patch_size": 8}
VIT = {"name": "ViT", "image_size": 32, "num_classes": 5, **SHAPE}

KINDS: dict[str, dict[str, object]] = {
    "class token": {**VIT},
    "average pooling": {**VIT, "pooling": "average"},
    "attention pooling": {**VIT, "pooling": "attention"},
    "pre-training head": {**VIT, "representation_width": 24, "head_bias": -10.0},
    "no positions": {**VIT, "positions": "none"},
    "2-D positions": {**VIT, "positions": "learned_2d"},
    "2-D positions every layer": {**VIT, "positions": "learned_2d", "position_placement": "every_layer"},
    "1-D positions every layer": {**VIT, "position_placement": "every_layer"},
    "1-D positions shared": {**VIT, "position_placement": "shared"},
    "relative positions": {**VIT, "positions": "relative", "position_placement": "every_layer"},
    "relative positions shared": {**VIT, "positions": "relative", "position_placement": "shared"},
    "relative bias": {
        **VIT,
        "positions": "relative_bias",
        "position_placement": "every_layer",
        "position_resampling": "bilinear",
        "pooling": "average",
        "has_class_token": True,
        "norm_after_pooling": True,
        "key_bias": False,
        "layer_scale": 0.1,
    },
    "relative bias shared": {**VIT, "positions": "relative_bias", "position_placement": "shared"},
    "factorised positions": {
        **VIT,
        "positions": "factorised",
        "positions_keep_aspect": True,
        "position_resampling": "bilinear",
    },
    "positions that keep the aspect": {
        **VIT,
        "positions_keep_aspect": True,
        "pooling": "attention",
        "num_registers": 2,
        "pools_leading_tokens": False,
        "has_prefix_positions": False,
    },
    "sincos positions": {**VIT, "positions": "sincos_2d"},
    "patch positions only": {**VIT, "has_prefix_positions": False},
    "registers": {**VIT, "num_registers": 3, "layer_scale": 0.1, "gelu": "erf"},
    "distillation token": {**VIT, "has_distillation_token": True},
    "qk-norm": {**VIT, "qk_norm": True},
    "mimetic attention": {**VIT, "initialisation": "mimetic", "positions": "sincos_2d"},
    "norm after pooling": {**VIT, "pooling": "average", "norm_after_pooling": True},
    "dropout": {**VIT, "dropout": 0.1, "stochastic_depth": 0.2},
    "dropout apart": {
        **VIT,
        "attention_dropout": 0.1,
        "projection_dropout": 0.1,
        "position_dropout": 0.2,
        "head_dropout": 0.1,
    },
    "ReLU and RMSNorm": {**VIT, "activation": "relu", "norm": "rms_norm", "qk_norm": True},
    "SiLU": {**VIT, "activation": "silu", "pooling": "attention", "norm": "rms_norm"},
    "quick GELU": {**VIT, "activation": "quick_gelu", "attention_scale": 0.3},
    "rotary positions (DINOv3)": {
        **VIT,
        "positions": "none",
        "rotary": "dinov3",
        "num_registers": 2,
        "layer_scale": 0.1,
        "key_bias": False,
        "mlp": "swiglu",
    },
    "rotary positions (EVA-02)": {
        **VIT,
        "rotary": "eva",
        "rotary_grid": (3, 3),
        "mlp": "swiglu",
        "mlp_norm": True,
        "key_bias": False,
        "pooling": "average",
        "has_class_token": True,
        "norm_after_pooling": True,
        "qk_norm": True,
    },
    "EVA-CLIP": {
        **VIT,
        "rotary": "eva",
        "rotary_grid": (3, 3),
        "mlp": "swiglu",
        "mlp_norm": True,
        "attention_norm": True,
        "key_bias": False,
        "representation_width": 24,
        "representation_layer": "projection",
        "projection_bias": True,
    },
    "norm in attention": {**VIT, "attention_norm": True, "norm": "rms_norm", "layer_scale": 0.1},
    "CLIP": {
        **VIT,
        "embedding_norm": True,
        "patch_bias": False,
        "activation": "quick_gelu",
        "representation_width": 24,
        "representation_layer": "projection",
        "unit_length": True,
    },
    "parallel branches": {
        **VIT,
        "num_branches": 2,
        "layer_scale": 0.1,
        "stochastic_depth": 0.1,
        "drop_rates": "constant",
    },
    "axial attention": {
        **VIT,
        "attention": "axial",
        "depth": 4,
        "pooling": "average",
        "image_size": (32, 48),
    },
    "hMLP stem": {**VIT, "patch_size": 16, "image_size": 64, "stem": "hmlp"},
    "hybrid on another network": {**VIT, "patch_size": 8, "stem": "two convolutions"},
    "activation checkpointing": {**VIT, "activation_checkpointing": True},
    "non-square": {**VIT, "image_size": (32, 48), "patch_size": (8, 4), "channels": 2},
    "hybrid": {
        "name": "R26+ViT-Ti/16",
        "image_size": 64,
        "num_classes": 5,
        "stem": ResNetStemConfig(units=(2, 2, 2), width=32),
        "width": 48,
        "mlp_width": 64,
        "depth": 2,
    },
    "hybrid for small pictures": {
        **VIT,
        "patch_size": 2,
        "stem": ResNetStemConfig(units=(1, 1), width=32, root="3x3"),
    },
    "BiT": {"name": "BiT-R26x1", "image_size": 64, "num_classes": 5, "width": 32},
    "BiT for small pictures": {
        "name": "BiT-R26x1",
        "image_size": 16,
        "num_classes": 5,
        "root": "3x3",
        "width": 32,
        "units": (1, 1, 1, 1),
    },
}

PYRAMID = {
    "image_size": 64,
    "num_classes": 5,
    "widths": (16, 24, 32, 40),
    "depths": (1, 2, 1, 1),
    "num_heads": (1, 2, 4, 5),
    "mlp_ratios": (2, 2, 2, 2),
}
KINDS |= {
    # Wide tokens with stirred weights are so far apart that a performer's exponentials underflow.
    "performer tokens": {
        **VIT,
        "patch_size": 1,
        "stem": TokensToTokenConfig(token_width=8),
        "positions": "sincos_1d",
    },
    "fixed 1-D positions": {**VIT, "positions": "sincos_1d"},
    "transformer tokens": {**VIT, "patch_size": 16, "stem": "t2t_t", "positions": "sincos_1d"},
    "PEG": {**VIT, "positions": "peg", "initialisation": "deit"},
    "PEGs without class token": {**VIT, "positions": "peg", "peg_layers": (-1, 1), "pooling": "average"},
}
# One line per family that is no ViT; every check of test_every_model.py and test_every_family.py takes it up.
AXIAL_RESNET = {"image_size": 64, "num_classes": 5, "units": (1, 2, 1), "width": 32}
FAMILIES: dict[str, dict[str, object]] = {
    "AxialResNet": {"name": "AxialResNet-50", **AXIAL_RESNET},
    "AxialResNet for small pictures": {
        "name": "AxialResNet-50",
        **AXIAL_RESNET,
        "image_size": (16, 24),
        "root": "3x3",
    },
    "Axial-DeepLab": {"name": "Axial-ResNet-S", **AXIAL_RESNET, "width": 16},
    "PVT": {"name": "pvt_tiny", **PYRAMID},
    "PVT v2": {"name": "pvt_v2_b0", **PYRAMID},
    "PVT v2 linear": {"name": "pvt_v2_b2_li", **PYRAMID},
    "PCPVT": {"name": "pcpvt_small_v0", **PYRAMID},
    "TNT": {
        "name": "TNT-S",
        "image_size": 32,
        "num_classes": 5,
        "width": 32,
        "depth": 2,
        "num_heads": 4,
        "mlp_width": 64,
        "inner_width": 8,
        "inner_num_heads": 2,
        "inner_mlp_width": 16,
    },
}
KINDS |= FAMILIES
# One of each for checks that take seconds.
ONE_OF_EACH = (
    "class token", "hybrid", "BiT for small pictures", "performer tokens", "transformer tokens", "PEG", *FAMILIES,
)  # fmt: skip


def small_model(kind: str) -> Model:
    return create_model(**KINDS[kind])  # type: ignore[arg-type]
