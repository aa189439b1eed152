"""timm's model of the same shape as ours, to be timed beside it."""

from types import ModuleType

from torch import nn

from vitrine.checkpoints.libraries import import_installed
from vitrine.models import Model, ViT


def find_timm() -> tuple[ModuleType | None, list[str]]:
    """Import timm, or say why there is none."""
    try:
        return import_installed("timm"), []
    except ImportError:
        return None, ["Not beside timm: it is not installed"]
    except RuntimeError as error:
        return None, [f"Not beside timm: it cannot be imported ({str(error).splitlines()[0]})"]


def timm_like(ours: Model, timm: ModuleType) -> nn.Module | None:
    """Make timm's model of the same shape; None where it has none, as of hybrids and ResNets."""
    if not isinstance(ours, ViT) or ours.config.stem is not None:
        return None
    config = ours.config
    made: nn.Module = timm.models.vision_transformer.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        in_chans=config.channels,
        num_classes=config.num_classes or 0,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_width / config.width,
    )
    return made
