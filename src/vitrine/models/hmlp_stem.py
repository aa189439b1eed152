"""The hMLP stem of "Three things everyone should know about Vision Transformers" (arXiv:2203.09795), as in DeiT III.

Patches of 16 pixels are embedded in three steps without overlap: 4 x 4 pixels, 2 x 2 cells, 2 x 2 cells, each with a
batch norm and a GELU between them. Information never crosses a patch, so masked patches stay masked. The first two
steps are here; the third is the model's patch projection, and `PatchNorm` its batch norm. In training, the statistics
are those of the images that a device computes at a time, so another micro-batch or number of devices changes them.

Shapes: B images, C channels, N patches, D width of the transformer, W width of the stem.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.stem_configs import HMlpStemConfig


class HMlpStem(nn.Module):
    """Map images (B, C, height, width) to a feature map (B, W, height / 8, width / 8)."""

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
