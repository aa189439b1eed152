"""BiT ResNets (arXiv:1912.11370): ResNet-v2 with group norm and weight standardisation, the paper's baseline.

Shapes: B images, C channels, rows x columns, K classes.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrine.errors import ConfigError
from vitrine.models.bit_config import BiTConfig
from vitrine.models.initialisation import initialise_head, initialise_layer
from vitrine.models.model import Model
from vitrine.models.standardised_conv import NUM_GROUPS, StandardisedConv2d
from vitrine.models.timm_surface import Level


class BiT(Model):
    """Map images (B, C, height, width) to logits (B, K), or to the representation if there is no head."""

    config: BiTConfig

    def __init__(self, config: BiTConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width * config.width_factor
        root = {"kernel_size": 7, "stride": 2, "padding": 3}
        if config.root == "3x3":
            root = {"kernel_size": 3, "stride": 1, "padding": 1}
        self.root_conv = conv(config, config.channels, width, **root)
        stages, in_channels = [], width
        for i, num_units in enumerate(config.units):
            mid = width * 2**i
            units = []
            for unit in range(num_units):
                stride = 2 if i > 0 and unit == 0 else 1
                units.append(PreActivationUnit(config, in_channels, mid, stride=stride))
                in_channels = 4 * mid
            stages.append(nn.ModuleList(units))
        self.stages = nn.ModuleList(stages)
        self.norm = nn.GroupNorm(NUM_GROUPS, in_channels, eps=config.norm_eps)
        self.head = nn.Linear(in_channels, config.num_classes) if config.num_classes else None
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise every parameter as the authors do; parameters on the meta device are skipped."""
        if self.norm.weight.is_meta:
            return
        for module in self.modules():
            initialise_layer(module)
        initialise_head(self.head, bias=self.config.head_bias)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to logits (B, K)."""
        return self.classify(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to the head's input (B, representation_width)."""
        hidden = self.root(images)
        for stage in range(len(self.stages)):
            hidden = self.run_stage(hidden, stage=stage)
        return self.pool(hidden)

    def root(self, images: Tensor) -> Tensor:
        """Convolve 7x7 and pool to a quarter of the height and width; a 3x3 root keeps the size."""
        self.require_image_shape(images.shape)
        if self.config.root == "3x3":
            return self.root_conv(images)
        # BiT pads the maximum with zeros, not with -inf.
        return F.max_pool2d(F.pad(self.root_conv(images), (1, 1, 1, 1)), kernel_size=3, stride=2)

    def run_stage(self, hidden: Tensor, *, stage: int) -> Tensor:
        """Run the units of one stage (stage 1 keeps the size, each later stage halves it)."""
        units = self.stages[stage]
        assert isinstance(units, nn.ModuleList)
        for unit in units:
            if self.is_recomputing():
                hidden = checkpoint(unit, hidden, use_reentrant=False)
            else:
                hidden = unit(hidden)
        return hidden

    def pool(self, hidden: Tensor) -> Tensor:
        """Reduce the last feature map to one vector per image: norm, ReLU, mean."""
        return F.relu(self.norm(hidden)).mean(dim=(2, 3))

    def classify(self, pooled: Tensor) -> Tensor:
        """Map the representation (B, representation_width) to logits (B, K)."""
        return pooled if self.head is None else self.head(pooled)

    def levels(self, images: Tensor) -> Iterator[Level]:
        """Yield the root's map before its pooling, as timm does, and the map after each stage."""
        yield Level(self.root_conv(images))
        hidden = self.root(images)
        for stage in range(len(self.stages)):
            hidden = self.run_stage(hidden, stage=stage)
            yield Level(hidden)

    @property
    def num_levels(self) -> int:
        """The root and the stages."""
        return 1 + len(self.stages)

    def finish(self, level: Level, *, index: int) -> Level:
        """Normalise the last stage's map; the others have norms of their own."""
        return Level(F.relu(self.norm(level.values))) if index == self.num_levels - 1 else level

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the normalised map of the last stage, (B, C, rows, columns)."""
        return self.last_map(images)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Average a normalised map (B, C, rows, columns) and map it to logits (B, K)."""
        pooled = features.mean(dim=(2, 3))
        return pooled if pre_logits else self.classify(pooled)

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate by name.

        `root`, `stage_1` to `stage_4` (feature maps), `pooled` and `representation` (the same here), `logits`.
        """
        hidden = self.root(images)
        named = {"root": hidden}
        for stage in range(len(self.stages)):
            hidden = named[f"stage_{stage + 1}"] = self.run_stage(hidden, stage=stage)
        named["pooled"] = named["representation"] = self.pool(hidden)
        if self.head is not None:
            named["logits"] = self.classify(named["pooled"])
        return named

    def last_map(self, images: Tensor) -> Tensor:
        """Return the map that is averaged: the last stage after norm and ReLU, (B, channels, rows, columns)."""
        return F.relu(self.norm(self.features(images)["stage_4"]))

    def attention(
        self, images: Tensor, *, layers: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Raise an error: a ResNet has no attention."""
        raise ConfigError("a BiT ResNet has no attention; use a ViT or a hybrid")


class PreActivationUnit(nn.Module):
    """Group norm and ReLU before each of the convolutions 1x1, 3x3 (with the stride) and 1x1."""

    def __init__(self, config: BiTConfig, in_channels: int, mid: int, *, stride: int) -> None:
        super().__init__()

        def norm(channels: int) -> nn.GroupNorm:
            return nn.GroupNorm(NUM_GROUPS, channels, eps=config.norm_eps)

        self.norm_1, self.conv_1 = norm(in_channels), conv(config, in_channels, mid, kernel_size=1)
        self.norm_2, self.conv_2 = norm(mid), conv(config, mid, mid, kernel_size=3, stride=stride, padding=1)
        self.norm_3, self.conv_3 = norm(mid), conv(config, mid, 4 * mid, kernel_size=1)
        self.projection = (
            conv(config, in_channels, 4 * mid, kernel_size=1, stride=stride)
            if in_channels != 4 * mid or stride > 1
            else None
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Map a feature map to the next."""
        branch = F.relu(self.norm_1(hidden))
        shortcut = hidden if self.projection is None else self.projection(branch)
        branch = F.relu(self.norm_2(self.conv_1(branch)))
        branch = F.relu(self.norm_3(self.conv_2(branch)))
        return self.conv_3(branch) + shortcut


def conv(
    config: BiTConfig,
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: int,
    stride: int = 1,
    padding: int = 0,
) -> StandardisedConv2d:
    """Build a convolution with BiT's weight standardisation."""
    return StandardisedConv2d(
        in_channels,
        out_channels,
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        std_eps=config.standardisation_std_eps,
        variance_eps=config.standardisation_variance_eps,
    )
