"""The convolutional half of a hybrid (section 4.1): a post-activation ResNet, weight-standardised.

Shapes: B images, C channels, rows x columns.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.standardised_conv import NUM_GROUPS, StandardisedConv2d
from vitrine.models.stem_configs import ResNetStemConfig


class ResNetStem(nn.Module):
    """Map images (B, C, height, width) to a feature map (B, channels, height / stride, width / stride)."""

    def __init__(self, config: ResNetStemConfig, *, channels: int) -> None:
        super().__init__()
        self.is_small = config.root == "3x3"
        kernel_size, stride = (3, 1) if self.is_small else (7, 2)
        self.root_conv = SameConv2d(config, channels, config.width, kernel_size=kernel_size, stride=stride)
        self.root_norm = nn.GroupNorm(NUM_GROUPS, config.width, eps=config.norm_eps)
        stages, in_channels = [], config.width
        for i, num_units in enumerate(config.units):
            mid = config.width * 2**i
            units = []
            for unit in range(num_units):
                stride = 2 if i > 0 and unit == 0 else 1
                units.append(BottleneckUnit(config, in_channels, mid, stride=stride))
                in_channels = 4 * mid
            stages.append(nn.Sequential(*units))
        self.stages = nn.ModuleList(stages)

    def forward(self, images: Tensor) -> Tensor:
        """Return the last stage's feature map."""
        hidden = F.relu(self.root_norm(self.root_conv(images)))
        if not self.is_small:  # pad with -inf, so that padding is never the maximum
            hidden = F.max_pool2d(pad_same(hidden, kernel_size=3, stride=2, value=float("-inf")), 3, 2)
        for stage in self.stages:
            hidden = stage(hidden)
        return hidden

    def zero_branches(self) -> None:
        """Zero the gain at the end of every residual branch, so that each unit starts as its shortcut."""
        for unit in self.modules():
            if isinstance(unit, BottleneckUnit):
                nn.init.zeros_(unit.norm_3.weight)


class BottleneckUnit(nn.Module):
    """Convolutions 1x1, 3x3 (with the stride), 1x1, each with group norm; ReLU after the sum."""

    def __init__(self, config: ResNetStemConfig, in_channels: int, mid: int, *, stride: int) -> None:
        super().__init__()

        def norm(channels: int) -> nn.GroupNorm:
            return nn.GroupNorm(NUM_GROUPS, channels, eps=config.norm_eps)

        self.conv_1, self.norm_1 = SameConv2d(config, in_channels, mid, kernel_size=1), norm(mid)
        self.conv_2, self.norm_2 = SameConv2d(config, mid, mid, kernel_size=3, stride=stride), norm(mid)
        self.conv_3, self.norm_3 = SameConv2d(config, mid, 4 * mid, kernel_size=1), norm(4 * mid)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != 4 * mid or stride > 1:
            projection = SameConv2d(config, in_channels, 4 * mid, kernel_size=1, stride=stride)
            self.shortcut = nn.Sequential(projection, norm(4 * mid))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map a feature map to the next."""
        branch = F.relu(self.norm_1(self.conv_1(hidden)))
        branch = F.relu(self.norm_2(self.conv_2(branch)))
        return F.relu(self.norm_3(self.conv_3(branch)) + self.shortcut(hidden))


class SameConv2d(StandardisedConv2d):
    """A standardised convolution padded so that stride s turns size n into ceil(n / s), TensorFlow's SAME."""

    def __init__(
        self,
        config: ResNetStemConfig,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: int,
        stride: int = 1,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size=kernel_size,
            stride=stride,
            std_eps=config.standardisation_std_eps,
            variance_eps=config.standardisation_variance_eps,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Pad, then convolve."""
        return super().forward(pad_same(hidden, kernel_size=self.kernel_size[0], stride=self.stride[0]))


def pad_same(hidden: Tensor, *, kernel_size: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad (B, C, rows, columns) as TensorFlow's SAME does: the odd pixel goes below and to the right.

    Images are multiples of the whole stride, so that every map is a multiple of its own: the padding is a
    constant of the layer, at any image size.
    """
    total = max(kernel_size - stride, 0)
    if total == 0:
        return hidden
    before, after = total // 2, total - total // 2
    return F.pad(hidden, (before, after, before, after), value=value)
