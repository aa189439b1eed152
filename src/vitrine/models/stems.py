"""The stem before the patch projection, built from its record; the hMLP stem.

Shapes: B images, C channels, N patches, D width of the transformer, W width of the stem.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.cnn_stem import CNNS, CnnStem
from vitrine.models.resnet_stem import ResNetStem
from vitrine.models.stem_configs import (
    CnnStemConfig,
    HMlpStemConfig,
    ResNetStemConfig,
    StemConfig,
    TokensToTokenConfig,
)
from vitrine.models.t2t_vit import TokensToToken

HMLP_SHARE = 4  # the stem's width is a quarter of the transformer's


def build_stem(config: StemConfig | None, *, channels: int) -> nn.Module:
    """Create the stem; a plain ViT cuts its patches from the image itself."""
    if config is None:
        return nn.Identity()
    if isinstance(config, ResNetStemConfig):
        return ResNetStem(config, channels=channels)
    if isinstance(config, HMlpStemConfig):
        return HMlpStem(config, channels=channels)
    if isinstance(config, TokensToTokenConfig):
        return TokensToToken(config, channels=channels)
    assert isinstance(config, CnnStemConfig)
    return CnnStem(config, channels=channels)


def stem_named(name: str, *, width: int) -> StemConfig:
    """Return the stem of this name: `hmlp`, `t2t`, `t2t_t` (with transformers) or a registered network."""
    if name == "hmlp":
        return HMlpStemConfig(width=width // HMLP_SHARE)
    if name in ("t2t", "t2t_t"):
        return TokensToTokenConfig(mixing="performer" if name == "t2t" else "transformer")
    if name in CNNS:
        return CNNS[name][1]
    raise ConfigError(
        f"must be one of {', '.join(('hmlp', 't2t', 't2t_t', *CNNS))}, got {name!r}", option="stem"
    )


class HMlpStem(nn.Module):
    """Map images (B, C, height, width) to a feature map (B, W, height / 8, width / 8).

    The hMLP stem of "Three things everyone should know about Vision Transformers" (arXiv:2203.09795), as in DeiT III.
    Patches of 16 pixels are embedded in three steps without overlap: 4 x 4 pixels, 2 x 2 cells, 2 x 2 cells, each
    with a batch norm and a GELU between them. Information never crosses a patch, so masked patches stay masked. The
    first two steps are here; the third is the model's patch projection, and `PatchNorm` its batch norm. In training,
    the statistics are those of the images that a device computes at a time, so another micro-batch or number of
    devices changes them.
    """

    def __init__(self, config: HMlpStemConfig, *, channels: int) -> None:
        super().__init__()
        W = config.width
        self.conv_1, self.norm_1 = nn.Conv2d(channels, W, kernel_size=4, stride=4), nn.BatchNorm2d(W)
        self.conv_2, self.norm_2 = nn.Conv2d(W, W, kernel_size=2, stride=2), nn.BatchNorm2d(W)

    def forward(self, images: Tensor) -> Tensor:
        """Embed patches of 4, then of 8 pixels."""
        hidden = F.gelu(self.norm_1(self.conv_1(images)))
        return F.gelu(self.norm_2(self.conv_2(hidden)))


class PatchNorm(nn.BatchNorm1d):
    """A batch norm of projected patches: over all patches of all images."""

    def forward(self, patches: Tensor) -> Tensor:
        """Normalise patches (B, N, D)."""
        return super().forward(patches.flatten(0, 1)).view_as(patches)
