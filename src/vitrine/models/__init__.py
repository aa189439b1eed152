"""Models map images to named features and logits: no I/O, no logging, no device moves."""

from typing import Any

from vitrine.models import (
    axial_resnet,
    axial_resnet_config,
    backbones,
    cpvt,
    pcpvt,
    pvt,
    pvt_v2,
    t2t_vit,
    tnt,
    tnt_config,
)
from vitrine.models.axial_resnet import AxialResNet
from vitrine.models.axial_resnet_config import AxialResNetConfig
from vitrine.models.axial_resnet_cost import axial_resnet_cost
from vitrine.models.bit import BiT
from vitrine.models.bit_config import BiTConfig
from vitrine.models.cnn_stem import register_cnn
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.cost import bit_cost
from vitrine.models.dense.families import DENSE_FAMILIES
from vitrine.models.encoder import Block
from vitrine.models.families import Family, family_of, register_family
from vitrine.models.model import Model
from vitrine.models.pcpvt import PCPVT, PCPVTConfig
from vitrine.models.pvt import PVT, PVTConfig
from vitrine.models.pvt_v2 import PVTv2, PVTv2Config
from vitrine.models.pyramid_cost import pcpvt_cost, pvt_cost, pvt_v2_cost
from vitrine.models.tnt import TNT
from vitrine.models.tnt_config import TNTConfig, tnt_cost
from vitrine.models.variants import configure
from vitrine.models.vit import ViT
from vitrine.models.vit_cost import vit_cost, vit_cost_of_patches

__all__ = [
    "PCPVT",
    "PVT",
    "TNT",
    "AxialResNet",
    "AxialResNetConfig",
    "BiT",
    "BiTConfig",
    "Block",
    "Family",
    "Model",
    "ModelConfig",
    "PCPVTConfig",
    "PVTConfig",
    "PVTv2",
    "PVTv2Config",
    "TNTConfig",
    "ViT",
    "ViTConfig",
    "build",
    "configure",
    "create_model",
    "register_cnn",
    "register_family",
]


def create_model(
    name: str,
    *,
    num_classes: int | None = 1000,
    image_size: int | tuple[int, int] | None = None,
    channels: int = 3,
    **options: Any,
) -> Model:
    """Create a freshly initialised model by name; it maps images (B, channels, height, width) to logits.

    Names are the paper's (`ViT-B/16`, `R50+ViT-B/16`, `BiT-R50x1`), timm's (`vit_base_patch16_224`) or
    torchvision's (`vit_b_16`). Options are the fields of the model's config, such as `ViTConfig`, or timm's keywords
    (`embed_dim`). Without classes (None, or timm's 0) there is no head, and the model returns features.
    """
    return build(
        configure(name, num_classes=num_classes or None, image_size=image_size, channels=channels, **options)
    )


def build(config: ModelConfig) -> Model:
    """Create a freshly initialised model from its config."""
    return family_of(config).build(config)


register_family(
    Family(
        kind="ViT",
        config=ViTConfig,
        build=ViT,
        cost=vit_cost,
        cost_of_patches=vit_cost_of_patches,
        variants=t2t_vit.VARIANTS | cpvt.VARIANTS | backbones.VARIANTS,
        aliases=t2t_vit.ALIASES | backbones.ALIASES,
        pixel_kernel="patch_projection.weight",
        untold=("num_heads",),
    )
)
register_family(
    Family(kind="BiT", config=BiTConfig, build=BiT, cost=bit_cost, pixel_kernel="root_conv.weight")
)
register_family(
    Family(
        kind="AxialResNet",
        config=AxialResNetConfig,
        build=AxialResNet,
        cost=axial_resnet_cost,
        variants=axial_resnet_config.VARIANTS,
        aliases=axial_resnet_config.ALIASES,
        pixel_kernel="root_conv.weight",
        resample=axial_resnet.resample,
    )
)
register_family(
    Family(
        kind="PVT",
        config=PVTConfig,
        build=PVT,
        cost=pvt_cost,
        variants=pvt.VARIANTS,
        aliases=pvt.ALIASES,
        pixel_kernel="stages.0.embedding.projection.weight",
        untold=("num_heads",),
        resample=pvt.resample,
    )
)
register_family(
    Family(
        kind="PVT v2",
        config=PVTv2Config,
        build=PVTv2,
        cost=pvt_v2_cost,
        variants=pvt_v2.VARIANTS,
        aliases=pvt_v2.ALIASES,
        pixel_kernel="stages.0.embedding.projection.weight",
        untold=("num_heads",),
    )
)
register_family(
    Family(
        kind="PCPVT",
        config=PCPVTConfig,
        build=PCPVT,
        cost=pcpvt_cost,
        variants=pcpvt.VARIANTS,
        aliases=pcpvt.ALIASES,
        pixel_kernel="stages.0.embedding.projection.weight",
        untold=("num_heads",),
    )
)
register_family(
    Family(
        kind="TNT",
        config=TNTConfig,
        build=TNT,
        cost=tnt_cost,
        variants=tnt_config.VARIANTS,
        aliases=tnt_config.ALIASES,
        pixel_kernel="word_projection.weight",
        untold=("num_heads", "inner_num_heads"),
        resample=tnt.resample,
    )
)
for dense_family in DENSE_FAMILIES:
    register_family(dense_family)
