"""The values that a model's options choose from."""

from typing import Literal

Pooling = Literal["class_token", "average", "attention"]
Positions = Literal[
    "none",
    "learned_1d",
    "learned_2d",
    "relative",
    "relative_bias",
    "factorised",
    "sincos_1d",
    "sincos_2d",
    "peg",
]
# Positions that are inside attention; with the convolution of PEG, all that are no table added to the tokens.
IN_ATTENTION: tuple[Positions, ...] = ("relative", "relative_bias")
NO_TABLE: tuple[Positions, ...] = (*IN_ATTENTION, "peg")
Placement = Literal["stem", "every_layer", "shared"]
Resampling = Literal[
    "linear_aligned",
    "bilinear",
    "bilinear_antialias",
    "bicubic",
    "bicubic_aligned",
    "bicubic_antialias",
    "bicubic_offset",
    "bilinear_offset",
]
Activation = Literal["gelu", "relu", "silu", "quick_gelu"]
Gelu = Literal["tanh", "erf"]
Rotary = Literal["none", "dinov3", "eva"]
MlpKind = Literal["dense", "swiglu"]
Representation = Literal["tanh", "projection"]
Norm = Literal["layer_norm", "rms_norm"]
Initialisation = Literal["vit", "deit", "mimetic"]
DropRates = Literal["linear", "constant"]
Attention = Literal["global", "axial"]
Root = Literal["7x7", "3x3"]
MapNorm = Literal["group_norm", "batch_norm"]
