"""Published backbones by name: DINOv2, DINOv3, EVA-02, EVA-CLIP, CLIP and SigLIP, each a plain ViT with options.

Names determine shape and numerics; weights come from files. tests/unit/models/test_backbones.py checks the numbers
of parameters.
"""

import dataclasses
from typing import Any

from vitrine.models.choices import Resampling
from vitrine.models.config import ViTConfig

S: dict[str, Any] = {"width": 384, "depth": 12, "num_heads": 6, "mlp_width": 1536}
B: dict[str, Any] = {"width": 768, "depth": 12, "num_heads": 12, "mlp_width": 3072}
L: dict[str, Any] = {"width": 1024, "depth": 24, "num_heads": 16, "mlp_width": 4096}
SO400M: dict[str, Any] = {"width": 1152, "depth": 27, "num_heads": 16, "mlp_width": 4304}
DINO: dict[str, Any] = {"num_classes": None, "gelu": "erf", "layer_scale": 1e-5}
DINOV2_SIZE, USUAL_SIZE = (518, 518), (224, 224)


def dinov2(num_registers: int = 0, **shape: Any) -> ViTConfig:
    """Return a DINOv2 (arXiv:2304.07193); the variants with registers resample positions differently."""
    resampling: Resampling = "bicubic_antialias" if num_registers else "bicubic_offset"
    return ViTConfig(
        **DINO, **shape, patch_size=(14, 14), image_size=DINOV2_SIZE, num_registers=num_registers,
        position_resampling=resampling,
    )  # fmt: skip


def dinov3(**shape: Any) -> ViTConfig:
    """Return a DINOv3 (arXiv:2508.10104): rotary positions alone, four registers, keys without a bias."""
    return ViTConfig(
        **DINO, **{"key_bias": False, **shape}, image_size=USUAL_SIZE, num_registers=4, norm_eps=1e-5,
        positions="none", rotary="dinov3", rotary_rescale=2.0,
    )  # fmt: skip


def eva02(**shape: Any) -> ViTConfig:
    """Return an EVA-02 (arXiv:2303.11331): SwiGLU, and rotary positions beside learned ones."""
    return ViTConfig(
        **shape, patch_size=(14, 14), image_size=USUAL_SIZE, num_classes=None, gelu="erf", mlp="swiglu",
        key_bias=False, rotary="eva", rotary_grid=(16, 16), pooling="average", has_class_token=True,
        norm_after_pooling=True, position_resampling="bicubic_antialias",
    )  # fmt: skip


def clip(patch: int, embedding: int, image_size: int = 224, **shape: Any) -> ViTConfig:
    """Return CLIP's image tower (arXiv:2103.00020) with its projection; OpenCLIP's use another activation."""
    return ViTConfig(
        **{"activation": "quick_gelu", **shape}, patch_size=(patch, patch), image_size=(image_size, image_size),
        num_classes=None, gelu="erf", norm_eps=1e-5, embedding_norm=True, patch_bias=False,
        representation_width=embedding, representation_layer="projection", position_resampling="bicubic_antialias",
    )  # fmt: skip


def eva02_clip(patch: int, embedding: int, image_size: int = 224, **shape: Any) -> ViTConfig:
    """Return EVA-CLIP's image tower on EVA-02 (arXiv:2303.15389), with its projection."""
    return ViTConfig(
        **shape, patch_size=(patch, patch), image_size=(image_size, image_size), num_classes=None, gelu="erf",
        mlp="swiglu", mlp_norm=True, attention_norm=True, key_bias=False, rotary="eva", rotary_grid=(16, 16),
        representation_width=embedding, representation_layer="projection", projection_bias=True,
        position_resampling="bicubic_antialias",
    )  # fmt: skip


def siglip(patch: int, image_size: int = 224, **shape: Any) -> ViTConfig:
    """Return the image tower of SigLIP or SigLIP 2 (arXiv:2502.14786), which pools by attention."""
    return ViTConfig(
        **shape, patch_size=(patch, patch), image_size=(image_size, image_size), num_classes=None,
        pooling="attention", has_prefix_positions=False, position_resampling="bicubic_antialias",
    )  # fmt: skip


def naflex(**shape: Any) -> ViTConfig:
    """Return SigLIP 2's image tower for any aspect ratio (NaFlex) with the square of its positions."""
    return dataclasses.replace(siglip(16, 256, **shape), position_resampling="bilinear_antialias")


def beit(**shape: Any) -> ViTConfig:
    """Return a BEiT or BEiT v2 (arXiv:2106.08254, arXiv:2208.06366) as it was fine-tuned, without its head."""
    return ViTConfig(
        **shape, patch_size=(16, 16), image_size=USUAL_SIZE, num_classes=None, gelu="erf", layer_scale=0.1,
        key_bias=False, positions="relative_bias", position_placement="every_layer", position_resampling="bilinear",
        pooling="average", has_class_token=True, norm_after_pooling=True,
    )  # fmt: skip


GIANT: dict[str, Any] = {"width": 1536, "depth": 40, "num_heads": 24, "mlp_width": 4096, "mlp": "swiglu"}
VARIANTS: dict[str, ViTConfig] = {
    "DINOv2-S/14": dinov2(**S),
    "DINOv2-B/14": dinov2(**B),
    "DINOv2-L/14": dinov2(**L),
    "DINOv2-g/14": dinov2(**GIANT),
    "DINOv2-S/14-reg": dinov2(4, **S),
    "DINOv2-B/14-reg": dinov2(4, **B),
    "DINOv2-L/14-reg": dinov2(4, **L),
    "DINOv2-g/14-reg": dinov2(4, **GIANT),
    "DINOv3-S/16": dinov3(**S),
    "DINOv3-S+/16": dinov3(**S, mlp="swiglu"),
    "DINOv3-B/16": dinov3(**B),
    "DINOv3-L/16": dinov3(**L),
    "DINOv3-H+/16": dinov3(width=1280, depth=32, num_heads=20, mlp_width=5120, mlp="swiglu"),
    "DINOv3-7B/16": dinov3(
        width=4096, depth=40, num_heads=32, mlp_width=8192, mlp="swiglu", qkv_bias=False, key_bias=True
    ),
    "EVA02-Ti/14": eva02(width=192, depth=12, num_heads=3, mlp_width=512),
    "EVA02-S/14": eva02(width=384, depth=12, num_heads=6, mlp_width=1024),
    "EVA02-B/14": eva02(width=768, depth=12, num_heads=12, mlp_width=2048, mlp_norm=True),
    "EVA02-L/14": eva02(width=1024, depth=24, num_heads=16, mlp_width=2730, mlp_norm=True),
    "EVA02-CLIP-B/16": eva02_clip(16, 512, width=768, depth=12, num_heads=12, mlp_width=2048),
    "EVA02-CLIP-L/14": eva02_clip(14, 768, width=1024, depth=24, num_heads=16, mlp_width=2730),
    "EVA02-CLIP-L/14-336": eva02_clip(14, 768, 336, width=1024, depth=24, num_heads=16, mlp_width=2730),
    "CLIP-B/32": clip(32, 512, **B),
    "CLIP-B/16": clip(16, 512, **B),
    "CLIP-L/14": clip(14, 768, **L),
    "CLIP-L/14-336": clip(14, 768, 336, **L),
    "OpenCLIP-B/32": clip(32, 512, **B, activation="gelu"),
    "OpenCLIP-B/16": clip(16, 512, **B, activation="gelu"),
    "OpenCLIP-L/14": clip(14, 768, **L, activation="gelu"),
    "OpenCLIP-H/14": clip(14, 1024, width=1280, depth=32, num_heads=16, mlp_width=5120, activation="gelu"),
    "BEiT-B/16": beit(**B),
    "BEiT-L/16": beit(**L),
    "SigLIP-B/16": siglip(16, **B),
    "SigLIP-L/16": siglip(16, 256, **L),
    "SigLIP-So400m/14": siglip(14, **SO400M),
    "SigLIP-So400m/16": siglip(16, 256, **SO400M),
    "SigLIP2-B/16-naflex": naflex(**B),
    "SigLIP2-So400m/16-naflex": naflex(**SO400M),
}
ALIASES: dict[str, str] = {
    "dinov2_vits14": "DINOv2-S/14",
    "dinov2_vitb14": "DINOv2-B/14",
    "dinov2_vitl14": "DINOv2-L/14",
    "dinov2_vitg14": "DINOv2-g/14",
    "dinov2_vits14_reg": "DINOv2-S/14-reg",
    "dinov2_vitb14_reg": "DINOv2-B/14-reg",
    "dinov2_vitl14_reg": "DINOv2-L/14-reg",
    "dinov2_vitg14_reg": "DINOv2-g/14-reg",
    "dinov3_vits16": "DINOv3-S/16",
    "dinov3_vits16plus": "DINOv3-S+/16",
    "dinov3_vitb16": "DINOv3-B/16",
    "dinov3_vitl16": "DINOv3-L/16",
    "dinov3_vith16plus": "DINOv3-H+/16",
    "dinov3_vit7b16": "DINOv3-7B/16",
    "vit_small_patch16_dinov3_qkvb": "DINOv3-S/16",
    "vit_small_plus_patch16_dinov3_qkvb": "DINOv3-S+/16",
    "vit_base_patch16_dinov3_qkvb": "DINOv3-B/16",
    "vit_large_patch16_dinov3_qkvb": "DINOv3-L/16",
    "vit_huge_plus_patch16_dinov3_qkvb": "DINOv3-H+/16",
    "vit_7b_patch16_dinov3": "DINOv3-7B/16",
    "eva02_tiny_patch14_224": "EVA02-Ti/14",
    "eva02_small_patch14_224": "EVA02-S/14",
    "eva02_base_patch14_224": "EVA02-B/14",
    "eva02_large_patch14_224": "EVA02-L/14",
    "eva02_base_patch16_clip_224": "EVA02-CLIP-B/16",
    "eva02_large_patch14_clip_224": "EVA02-CLIP-L/14",
    "eva02_large_patch14_clip_336": "EVA02-CLIP-L/14-336",
    "vit_base_patch32_clip_quickgelu_224": "CLIP-B/32",
    "vit_base_patch16_clip_quickgelu_224": "CLIP-B/16",
    "vit_large_patch14_clip_quickgelu_224": "CLIP-L/14",
    "vit_large_patch14_clip_quickgelu_336": "CLIP-L/14-336",
    "vit_base_patch32_clip_224": "OpenCLIP-B/32",
    "vit_base_patch16_clip_224": "OpenCLIP-B/16",
    "vit_large_patch14_clip_224": "OpenCLIP-L/14",
    "vit_huge_patch14_clip_224": "OpenCLIP-H/14",
    "vit_base_patch16_siglip_224": "SigLIP-B/16",
    "vit_large_patch16_siglip_256": "SigLIP-L/16",
    "vit_so400m_patch14_siglip_224": "SigLIP-So400m/14",
    "beit_base_patch16_224": "BEiT-B/16",
    "beit_large_patch16_224": "BEiT-L/16",
    "beitv2_base_patch16_224": "BEiT-B/16",
    "beitv2_large_patch16_224": "BEiT-L/16",
    "vit_so400m_patch16_siglip_256": "SigLIP-So400m/16",
    "naflexvit_base_patch16_siglip": "SigLIP2-B/16-naflex",
    "naflexvit_so400m_patch16_siglip": "SigLIP2-So400m/16-naflex",
}
"""Names in the authors' code and in timm."""
