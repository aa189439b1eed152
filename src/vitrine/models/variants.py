"""Every model of the paper by name, in the paper's spelling, timm's and torchvision's.

A name determines the shape; numerics are the paper's for every spelling (weights bring their own).
"""

import re
from typing import Any

from vitrine.errors import ConfigError, TryVerb
from vitrine.models.bit_config import BiTConfig
from vitrine.models.config import ModelConfig, ViTConfig, with_options
from vitrine.models.deit3 import VARIANTS as DEIT3_VARIANTS
from vitrine.models.deit3 import read_deit3
from vitrine.models.families import named_variant, variant_names
from vitrine.models.sizes import as_size, shown
from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.models.stems import stem_named
from vitrine.models.timm_keywords import in_our_words
from vitrine.spelling import nearest

# Table 1, and two smaller models of the authors' later work: width, depth, heads, MLP width.
SHAPES: dict[str, dict[str, Any]] = {
    "Ti": {"width": 192, "depth": 12, "num_heads": 3, "mlp_width": 768},
    "S": {"width": 384, "depth": 12, "num_heads": 6, "mlp_width": 1536},
    # Figures 4 and 5: "all hidden dimensions halved". The number of heads is no dimension and stays ViT-B's.
    "b": {"width": 384, "depth": 12, "num_heads": 12, "mlp_width": 1536},
    "B": {"width": 768, "depth": 12, "num_heads": 12, "mlp_width": 3072},
    "L": {"width": 1024, "depth": 24, "num_heads": 16, "mlp_width": 4096},
    "H": {"width": 1280, "depth": 32, "num_heads": 16, "mlp_width": 5120},
}
RESNET_UNITS: dict[str, tuple[int, int, int, int]] = {
    "R26": (2, 2, 2, 2),
    "R50": (3, 4, 6, 3),
    "R101": (3, 4, 23, 3),
    "R152": (3, 8, 36, 3),
    "R200": (3, 24, 36, 3),
}
TIMM_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}

# `vitrine models` lists these. Any other patch size and any other combination has a name too.
VARIANTS = (
    "ViT-Ti/16",
    "ViT-S/32",
    "ViT-S/16",
    "ViT-b/32",
    "ViT-B/32",
    "ViT-B/16",
    "ViT-B/8",
    "ViT-L/32",
    "ViT-L/16",
    "ViT-H/14",
    *DEIT3_VARIANTS,
    "Axial-ViT-B/32",
    "Axial-ViT-B/16",
    "R+ViT-Ti/16",
    "R26+ViT-S/32",
    "R50+ViT-B/32",
    "R50+ViT-B/16",
    "R50+ViT-L/32",
    "R50+ViT-L/16",
    "BiT-R50x1",
    "BiT-R50x2",
    "BiT-R50x3",
    "BiT-R101x1",
    "BiT-R101x3",
    "BiT-R152x1",
    "BiT-R152x2",
    "BiT-R152x4",
    "BiT-R200x3",
)


def configure(
    name: str,
    *,
    num_classes: int | None = 1000,
    image_size: int | tuple[int, int] | None = None,
    channels: int = 3,
    **options: Any,
) -> ModelConfig:
    """Return the config of `name`, with `options` changed.

    If `image_size` is not given, it is the name's own (`vit_base_patch16_384`) or 224.
    """
    config, named_size = resolve(name)
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    options = in_our_words(options, config)
    channels, image_size = options.pop("channels", channels), options.pop("image_size", image_size)
    if "patch_size" in options:
        options["patch_size"] = as_size(options["patch_size"])
    if isinstance(config, ViTConfig) and isinstance(options.get("stem"), str):
        options |= with_stem(config, options)
    size = as_size(image_size if image_size is not None else named_size or 224)
    return with_options(
        config, {"num_classes": num_classes, "image_size": size, "channels": channels, **options}
    )


def with_stem(config: ViTConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that add a stem, given by its name, to a ViT; its patches keep their size in pixels."""
    stem = stem_named(options["stem"], width=options.get("width", config.width))
    height, width = options.get("patch_size", config.patch_size)
    if height % stem.stride or width % stem.stride:
        raise ConfigError(
            f"patches must be a multiple of {stem.stride} pixels, the stride of the stem {options['stem']!r}, "
            f"got {shown((height, width))}"
        )
    return {"stem": stem, "patch_size": (height // stem.stride, width // stem.stride)}


def resolve(name: str) -> tuple[ModelConfig, int | None]:
    """Return the config of a name, built for a size that its patches tile, and the size in the name, if any."""
    registered = named_variant(name.strip())
    if registered is not None:
        return registered, registered.image_size[0]
    for read in (
        read_deit3,
        read_vit,
        read_axial,
        read_hybrid,
        read_bit,
        read_timm_vit,
        read_timm_hybrid,
        read_torchvision,
    ):
        resolved = read(name.strip())
        if resolved is not None:
            return resolved
    close = nearest(name, [*VARIANTS, *variant_names()], 3)
    raise ConfigError(
        f"no model is called {name!r}; nearest: {', '.join(close)}",
        suggestions=close,
        advice=[TryVerb("models", (), "to list all")],
    )


Variant = tuple[ModelConfig, int | None]


def read_vit(name: str) -> Variant | None:
    """Read ViT-B/16, ViT-B/16x8 (height x width) or plain ViT (a B/16 whose numbers can all be overridden)."""
    if name.lower() == "vit":
        return ViTConfig(), None
    match = re.fullmatch(r"(?:ViT[-_])?(Ti|S|B|L|H)/(\d+)(?:x(\d+))?", name, re.IGNORECASE)
    if match is None:
        return None
    # The paper writes ViT-b for a ViT-B of half the width; a name all in lower case means ViT-B as before.
    size = SHAPES["b"] if name.startswith("ViT") and match[1] == "b" else shape(match[1])
    return vit(size, patch_size=(int(match[2]), int(match[3] or match[2]))), None


def read_axial(name: str) -> Variant | None:
    """Read Axial-ViT-B/16 (appendix D.6): each block becomes one for rows and one for columns, each with an MLP."""
    match = re.fullmatch(r"Axial-(ViT-.+)", name, re.IGNORECASE)
    plain = read_vit(match[1]) if match else None
    if plain is None:
        return None
    config, size = plain
    assert isinstance(config, ViTConfig)
    # A token outside the grid would lie in no row or column, so the patches are averaged.
    return with_options(config, {"depth": 2 * config.depth, "attention": "axial", "pooling": "average"}), size


def read_hybrid(name: str) -> Variant | None:
    """Read R50+ViT-B/16 (any ResNet, stride 16 or 32) and the authors' R+ViT-Ti/16."""
    match = re.fullmatch(r"(R\d*)\+ViT-(Ti|S|B|L|H)/(16|32)", name, re.IGNORECASE)
    if match is None:
        return None
    stem, size, stride = match[1].upper(), shape(match[2]), int(match[3])
    if stem == "R":  # only the root and patches of 8 cells: 32 pixels per token, although the name says 16
        return (vit(size, patch_size=(8, 8), stem=ResNetStemConfig(units=())), None) if stride == 16 else None
    if stem not in RESNET_UNITS:
        return None
    return hybrid(size, stem, stride), None


def read_bit(name: str) -> Variant | None:
    """Read BiT-R50x1, BiT-M-R50x1, R50x1 and timm's resnetv2_50x1_bit."""
    match = re.fullmatch(r"(?:BiT-(?:[SML]-)?)?(R\d+)x(\d)", name, re.IGNORECASE)
    if match is None:
        timm = re.fullmatch(r"resnetv2_(\d+)x(\d)_bit(?:m|\..*)?", name)
        units = timm and RESNET_UNITS.get(f"R{timm[1]}")
        return (BiTConfig(units=units, width_factor=int(timm[2])), None) if timm and units else None
    units = RESNET_UNITS.get(match[1].upper())
    return (BiTConfig(units=units, width_factor=int(match[2])), None) if units else None


def read_timm_vit(name: str) -> Variant | None:
    """Read names like vit_base_patch16_224 and vit_small_patch16_18x2_224, with any tag after a dot."""
    match = re.fullmatch(
        r"(vit|deit)_(tiny|small|base|large|huge)_(distilled_)?patch(\d+)(_gap)?(?:_(\d+)x(\d))?(?:_(\d+))?(?:\..*)?",
        name,
    )
    if match is None:
        return None
    patch = int(match[4])
    config = vit(SHAPES[TIMM_SIZES[match[2]]], patch_size=(patch, patch))
    if match[3]:
        config = with_options(config, {"has_distillation_token": True})
    if match[5]:
        config = with_options(config, {"pooling": "average"})
    if match[6]:  # "Three things everyone should know about Vision Transformers", with LayerScale
        options = {"depth": int(match[6]), "num_branches": int(match[7]), "layer_scale": 1e-5}
        config = with_options(config, options)
    return config, int(match[8]) if match[8] else None


def read_timm_hybrid(name: str) -> Variant | None:
    """Read names like vit_base_r50_s16_224."""
    match = re.fullmatch(r"vit_(tiny|small|base|large|huge)_r(\d+)_s(16|32)(?:_(\d+))?(?:\..*)?", name)
    if match is None or f"R{match[2]}" not in RESNET_UNITS:
        return None
    return hybrid(SHAPES[TIMM_SIZES[match[1]]], f"R{match[2]}", int(match[3])), int(match[4]) if match[
        4
    ] else None


def read_torchvision(name: str) -> Variant | None:
    """Read names like vit_b_16."""
    match = re.fullmatch(r"vit_([bslh]|ti)_(\d+)", name)
    if match is None:
        return None
    return vit(shape(match[1]), patch_size=(int(match[2]), int(match[2]))), None


def shape(letters: str) -> dict[str, Any]:
    """Return the shape with this letter code, ignoring case."""
    return SHAPES[letters.capitalize()]


def vit(size: dict[str, Any], **options: Any) -> ViTConfig:
    """Build a config whose image is a whole number of patches; the caller then sets the image size."""
    stem, patch = options.get("stem"), options["patch_size"]
    stride = stem.stride if stem else 1
    for side in patch:
        if side < 1:
            raise ConfigError(f"patch size must be at least 1, got {side}")
    return ViTConfig(image_size=(patch[0] * stride * 7, patch[1] * stride * 7), **size, **options)


def hybrid(size: dict[str, Any], stem: str, stride: int) -> ViTConfig:
    """Build the config of a hybrid (section 4.1) with patches of one cell.

    Stride 32 is option (i): the output of stage 4 of the regular ResNet. Stride 16 is option (ii): stage 4 is
    removed and its units move to stage 3, which gives four times as many tokens.
    """
    first, second, third, fourth = RESNET_UNITS[stem]
    units = (first, second, third, fourth) if stride == 32 else (first, second, third + fourth)
    return vit(size, patch_size=(1, 1), stem=ResNetStemConfig(units=units))
