"""AxialResNet (arXiv:2010.11929, appendix D.6), top to bottom: a ResNet that attends along columns, then along rows.

The paper has one sentence and a figure about it: "all the convolutions with kernel size 3x3 in a ResNet50 are
replaced by axial self-attention, i.e. a row and column attention, augmented by relative positional encoding",
implemented after Axial-DeepLab's code. `AxialResNet-50` follows the AxialResNet of Scenic, a library by authors of
the paper (scenic/projects/baselines/axial_resnet.py): ResNet-50 with its own widths, group norm and standardised
convolutions like BiT and the hybrids, norms after convolutions like the hybrids, no norm of logits, 8 heads, columns
before rows, an average of 2 x 2 cells in place of a stride. The root stays a convolution of 7x7.

Two departures from Scenic, which has published no weights for it: the key's position term reads the key of the cell
that is attended to, as equation 4 of Axial-DeepLab says (in Scenic, that of the attending cell); and padding is the
same on all sides, as in Axial-DeepLab, where Scenic puts the odd pixel below and to the right.

`norm="batch_norm"` and `attention_factor=2` are the networks of Axial-DeepLab (arXiv:2003.07853) as its code builds
them (csrhddlam/axial-deeplab): attention sees twice as many channels; batch norm everywhere, also of each term of the
logits and of the output; plain convolutions. `Axial-ResNet-S`, `-M` and `-L` are these with 0.5, 0.75 and 1 times the
widths. Their heads start at zero, like all of ours.

Neither has a rule for other image sizes: offsets are resampled along their line, as for relative positions.

Shapes: B images, C channels, rows x columns, K classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrine.models.axial_resnet_config import AxialResNetConfig
from vitrine.models.initialisation import initialise_convolutions, initialise_head, initialise_layer
from vitrine.models.line_attention import LineAttention
from vitrine.models.line_positions import stretched
from vitrine.models.model import Model, wanted_layers
from vitrine.models.sizes import require_tiling
from vitrine.models.standardised_conv import NUM_GROUPS, StandardisedConv2d
from vitrine.models.timm_surface import Level

STANDARDISATION_EPS = 1e-10  # added to the variance, as in BiT


class AxialResNet(Model):
    """Map images (B, C, height, width) to logits (B, K), or to the representation if there is no head."""

    config: AxialResNetConfig

    def __init__(self, config: AxialResNetConfig) -> None:
        super().__init__()
        self.config = config
        kernel_size, stride = (3, 1) if config.root == "3x3" else (7, 2)
        self.root_conv = conv(config, config.channels, config.width, kernel_size=kernel_size, stride=stride)
        self.root_norm = map_norm(config, config.width)
        self.stages = nn.ModuleList(Stage(config, stage) for stage in range(len(config.units)))
        K = config.num_classes
        self.head = nn.Linear(config.representation_width, K) if K else None
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise every parameter as the authors do; parameters on the meta device are skipped."""
        if self.root_conv.weight.is_meta:
            return
        for module in self.modules():
            initialise_layer(module)
        if self.config.norm == "batch_norm":
            initialise_convolutions(self)
        for module in self.modules():
            if isinstance(module, LineAttention):
                module.initialise()
            if isinstance(module, AxialUnit):  # every unit begins as its shortcut
                nn.init.zeros_(module.norm_3.get_parameter("weight"))
        initialise_head(self.head, bias=self.config.head_bias)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to logits (B, K)."""
        return self.classify(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """Map normalised images (B, C, height, width) to the head's input (B, representation_width)."""
        return self.pool(self.last_map(images))

    def root(self, images: Tensor) -> Tensor:
        """Convolve 7x7 and pool to a quarter of the height and width; a 3x3 root keeps the size."""
        self.require_image_shape(images.shape)
        require_tiling((images.shape[2], images.shape[3]), self.config.token_stride)
        hidden = F.relu(self.root_norm(self.root_conv(images)))
        return hidden if self.config.root == "3x3" else F.max_pool2d(hidden, 3, stride=2, padding=1)

    def units(self) -> Iterator[tuple[int, "AxialUnit"]]:
        """Yield stage and unit in order of depth."""
        for number, stage in enumerate(self.stages):
            for unit in stage.get_submodule("blocks").children():
                assert isinstance(unit, AxialUnit)
                yield number, unit

    def run_unit(self, unit: "AxialUnit", hidden: Tensor) -> Tensor:
        """Run one unit, in training with its activations recomputed if the config says so.

        Batch norm then sees every batch twice, and its running statistics move almost twice as fast.
        """
        if self.is_recomputing():
            recomputed: Tensor = checkpoint(unit, hidden, use_reentrant=False)
            return recomputed
        result: Tensor = unit(hidden)
        return result

    def pool(self, hidden: Tensor) -> Tensor:
        """Average the last feature map: one vector per image."""
        return hidden.mean(dim=(2, 3))

    def classify(self, pooled: Tensor) -> Tensor:
        """Map the representation (B, representation_width) to logits (B, K)."""
        return pooled if self.head is None else self.head(pooled)

    def last_map(self, images: Tensor) -> Tensor:
        """Return the map that is averaged: the output of the last stage, (B, channels, rows, columns)."""
        hidden = self.root(images)
        for _, unit in self.units():
            hidden = self.run_unit(unit, hidden)
        return hidden

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate by name.

        `root`, `stage_1`... (feature maps), `pooled` and `representation` (the same here), `logits`.
        """
        hidden = self.root(images)
        named = {"root": hidden}
        for stage, unit in self.units():
            hidden = named[f"stage_{stage + 1}"] = self.run_unit(unit, hidden)
        named["pooled"] = named["representation"] = self.pool(hidden)
        if self.head is not None:
            named["logits"] = self.classify(named["pooled"])
        return named

    @torch.no_grad()
    def attention(
        self, images: Tensor, *, layers: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (layer, weights (B, H, rows x columns, L)): from every cell to the L cells of its column or row.

        Every unit has two layers: an even one along columns, an odd one along rows.
        """
        wanted = wanted_layers(layers, depth=2 * sum(self.config.units))
        hidden, layer = self.root(images), 0
        for _, unit in self.units():
            inside = unit.enter(hidden)
            for attention in (unit.column_attention, unit.row_attention):
                if layer in wanted:
                    yield layer, attention.weights(inside)
                if layer >= max(wanted, default=-1):
                    return
                inside = attention(inside)
                layer += 1
            hidden = unit.leave(inside, hidden)

    def levels(self, images: Tensor) -> Iterator[Level]:
        """Yield the map after the root and after each stage."""
        for name, value in self.features(images).items():
            if name.startswith(("root", "stage_")):
                yield Level(value)

    @property
    def num_levels(self) -> int:
        """The root and the stages."""
        return 1 + len(self.stages)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the map of the last stage, (B, C, rows, columns)."""
        return self.last_map(images)


class Stage(nn.Module):
    """The units of one stage; the first of all stages but the first halves the map."""

    def __init__(self, config: AxialResNetConfig, stage: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(AxialUnit(config, stage, unit) for unit in range(config.units[stage]))


class AxialUnit(nn.Module):
    """A bottleneck: 1x1 convolution, attention along columns and then rows, 1x1 convolution; ReLU after the sum."""

    def __init__(self, config: AxialResNetConfig, stage: int, unit: int) -> None:
        super().__init__()
        width, out_channels = config.attention_width(stage), config.out_width(stage)
        in_channels = out_channels if unit else config.out_width(stage - 1) if stage else config.width
        self.stride = 2 if stage and not unit else 1
        rows, columns = config.grid(stage, unit, config.image_size)
        attention = partial(
            LineAttention, width, num_heads=config.num_heads, norm=config.norm, norm_eps=config.norm_eps
        )
        self.conv_1, self.norm_1 = conv(config, in_channels, width), map_norm(config, width)
        self.column_attention = attention(length=rows, is_column=True)
        self.row_attention = attention(length=columns, is_column=False)
        self.conv_3, self.norm_3 = conv(config, width, out_channels), map_norm(config, out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or self.stride > 1:
            projection = conv(config, in_channels, out_channels, stride=self.stride)
            self.shortcut = nn.Sequential(projection, map_norm(config, out_channels))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map a feature map to the next."""
        return self.leave(self.row_attention(self.column_attention(self.enter(hidden))), hidden)

    def enter(self, hidden: Tensor) -> Tensor:
        """Return the map that the attention reads."""
        return F.relu(self.norm_1(self.conv_1(hidden)))

    def leave(self, inside: Tensor, hidden: Tensor) -> Tensor:
        """Add what the attention made of the unit's input to this input's shortcut."""
        if self.stride > 1:
            inside = F.avg_pool2d(inside, self.stride)
        return F.relu(self.norm_3(self.conv_3(F.relu(inside))) + self.shortcut(hidden))


def conv(
    config: AxialResNetConfig, in_channels: int, out_channels: int, *, kernel_size: int = 1, stride: int = 1
) -> nn.Conv2d:
    """Build a convolution without bias: with BiT's weight standardisation, beside batch norm without it."""
    padding = kernel_size // 2
    if config.norm == "batch_norm":
        return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=False)
    return StandardisedConv2d(
        in_channels,
        out_channels,
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        std_eps=0.0,
        variance_eps=STANDARDISATION_EPS,
    )


def map_norm(config: AxialResNetConfig, channels: int) -> nn.Module:
    """Create the norm of a map (B, channels, rows, columns)."""
    if config.norm == "batch_norm":
        return nn.BatchNorm2d(channels, eps=config.norm_eps)
    return nn.GroupNorm(NUM_GROUPS, channels, eps=config.norm_eps)


def resample(
    config: AxialResNetConfig, image_size: tuple[int, int]
) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return the function that resamples each table of offsets for another image size."""
    require_tiling(image_size, config.token_stride)
    changes: dict[str, Callable[[Tensor], Tensor]] = {}
    for stage, num_units in enumerate(config.units):
        for unit in range(num_units):
            for axis, length in zip(("column", "row"), config.grid(stage, unit, image_size), strict=True):
                name = f"stages.{stage}.blocks.{unit}.{axis}_attention.positions.table"
                changes[name] = partial(stretched, count=2 * length - 1)
    return changes
