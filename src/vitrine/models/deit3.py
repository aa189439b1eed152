"""DeiT III (arXiv:2204.07118): the plain ViT with LayerScale, trained well; and its deeper and parallel forms.

It differs from ViT in options of `ViTConfig`: positions for patches only, the class token has none; LayerScale, which
starts at 1e-4; the exact GELU; the same rate of stochastic depth in every block; positions resampled without
antialiasing. The hMLP stem and parallel blocks are those of arXiv:2203.09795.

Names: DeiT-III-S/16 (the paper's), deit3_small_patch16_224 (timm's), deit_small_patch16_LS (the authors' code), with
`_36`, `_18x2` and `_36x1` for 36 blocks, or 18 of two parallel branches.
"""

import re
from typing import Any

from vitrine.models.config import ViTConfig

NUMERICS: dict[str, Any] = {
    "gelu": "erf",
    "layer_scale": 1e-4,
    "has_prefix_positions": False,
    "position_resampling": "bicubic",
    "drop_rates": "constant",
}
SHAPES: dict[str, dict[str, Any]] = {
    "Ti": {"width": 192, "depth": 12, "num_heads": 3, "mlp_width": 768},
    "S": {"width": 384, "depth": 12, "num_heads": 6, "mlp_width": 1536},
    "M": {"width": 512, "depth": 12, "num_heads": 8, "mlp_width": 2048},
    "B": {"width": 768, "depth": 12, "num_heads": 12, "mlp_width": 3072},
    "L": {"width": 1024, "depth": 24, "num_heads": 16, "mlp_width": 4096},
    "H": {"width": 1280, "depth": 32, "num_heads": 16, "mlp_width": 5120},
}
SIZES = {"tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H"}
# Patches of the published models, in pixels.
PATCHES = {"H": 14}
USUAL_PATCH = 16
VARIANTS = ("DeiT-III-S/16", "DeiT-III-M/16", "DeiT-III-B/16", "DeiT-III-L/16", "DeiT-III-H/14")


def read_deit3(name: str) -> tuple[ViTConfig, int | None] | None:
    """Read DeiT-III-S/16, DeiT III-S, deit3_small_patch16_224 and deit_small_patch16_LS, with any tag after a dot."""
    paper = re.fullmatch(r"DeiT[- ]?(?:III|3)[- ](Ti|S|M|B|L|H)(?:/(\d+))?", name, re.IGNORECASE)
    if paper:
        size = paper[1].capitalize()
        return deit3(size, patch=int(paper[2] or PATCHES.get(size, USUAL_PATCH))), None
    words = "|".join(SIZES)
    timm = re.fullmatch(rf"deit3_({words})_patch(\d+)(?:_(\d+))?(?:\..*)?", name)
    if timm:
        return deit3(SIZES[timm[1]], patch=int(timm[2])), int(timm[3]) if timm[3] else None
    official = re.fullmatch(rf"deit_({words})_patch(\d+)(?:_(\d+)(?:x(\d+))?)?_LS", name)
    if official is None:
        return None
    depth, branches = official[3], official[4]
    options = {"depth": int(depth)} if depth else {}
    if branches:
        options["num_branches"] = int(branches)
    return deit3(SIZES[official[1]], patch=int(official[2]), **options), None


def deit3(size: str, *, patch: int, **options: Any) -> ViTConfig:
    """Return the config of a size, built for seven patches per side; the caller asks for the image size it wants."""
    side = 7 * max(patch, 1)
    return ViTConfig(
        image_size=(side, side), patch_size=(patch, patch), **(SHAPES[size] | NUMERICS | options)
    )


def is_deit3(config: ViTConfig) -> bool:
    """Whether a config is DeiT III's: LayerScale, and positions for patches alone."""
    return config.layer_scale is not None and not config.has_prefix_positions and config.reads_class_token
