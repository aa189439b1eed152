"""PVT v2 (arXiv:2106.13797), top to bottom: overlapping patches, no positions, a convolution in the MLP.

Shapes: B images, C channels, N = GH x GW tokens of a stage on its grid, D width, M hidden width of the MLP, R width
of the last stage.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.config_checks import require_positive
from vitrine.models.dropout import Dropout
from vitrine.models.initialisation import initialise_convolutions, initialise_linears
from vitrine.models.positions import Grid
from vitrine.models.pyramid import PatchEmbedding, Pyramid, PyramidBlock, drop_rates, to_map, to_tokens
from vitrine.models.pyramid_config import FIRST_STRIDE, NEXT_STRIDE, PyramidConfig
from vitrine.models.sizes import shown

FIRST_KERNEL, NEXT_KERNEL, MIXING_KERNEL = 7, 3, 3
# Cells per side that linear attention averages each map to (section 3.2).
POOLED_SIDE = 7


@dataclass(frozen=True, kw_only=True)
class PVTv2Config(PyramidConfig):
    """A PVT v2; with `has_linear_attention` one of the -Li models."""

    has_linear_attention: bool = False
    """Average every map to 7 x 7 keys instead of convolving it by `reductions`."""
    first_stride: int = FIRST_STRIDE
    """Pixels per side for one token of the first stage; small images need less than the paper's 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("first_stride", self.first_stride, most=FIRST_KERNEL)
        self.require_size(self.image_size)

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels per side for one token of each stage."""
        return tuple(self.first_stride * NEXT_STRIDE**stage for stage in range(len(self.widths)))

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """Return the grid of every stage; padded patches round up."""
        return tuple((-(-image_size[0] // stride), -(-image_size[1] // stride)) for stride in self.strides)

    def reduced(self, grid: Grid, stage: int) -> Grid:
        """Return the grid of the keys of a stage."""
        return (POOLED_SIDE, POOLED_SIDE) if self.has_linear_attention else super().reduced(grid, stage)

    def require_size(self, image_size: tuple[int, int]) -> None:
        """Refuse an image so small that a stage has no key left; any other size fits."""
        if self.has_linear_attention:
            return
        # A stage of ceil(side / stride) cells must have at least `reduction` of them.
        least = max(
            (reduction - 1) * stride + 1
            for stride, reduction in zip(self.strides, self.reductions, strict=True)
        )
        if min(image_size) < least:
            raise ConfigError(
                f"image_size must be at least {least} for keys reduced by {', '.join(map(str, self.reductions))}, "
                f"got {shown(image_size)}; nearest that fits: "
                f"{shown((max(image_size[0], least), max(image_size[1], least)))}"
            )


class PVTv2(Pyramid):
    """Map images (B, C, height, width) to logits (B, classes), or to the representation if there is no head."""

    config: PVTv2Config

    def __init__(self, config: PVTv2Config) -> None:
        super().__init__()
        self.config = config
        rates = drop_rates(config)
        self.stages = nn.ModuleList(
            PVTv2Stage(config, stage=stage, rates=rates[stage]) for stage in range(len(config.widths))
        )
        K = config.num_classes
        self.head = nn.Linear(config.representation_width, K) if K else None
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise every parameter as the authors do; parameters on the meta device are skipped."""
        if next(self.parameters()).is_meta:
            return
        initialise_linears(self)
        initialise_convolutions(self)
        if self.head is not None:
            nn.init.constant_(self.head.bias, self.config.head_bias)

    def require_size(self, image_size: tuple[int, int]) -> None:
        """Refuse an image so small that a stage has no key left."""
        self.config.require_size(image_size)

    def begin_stage(self, maps: Tensor, stage: int) -> tuple[Tensor, Grid]:
        """Embed overlapping patches (section 3.3): tokens (B, N, D) and their grid."""
        embedded: tuple[Tensor, Grid] = self.stages[stage].get_submodule("embedding")(maps)
        return embedded

    def end_stage(self, tokens: Tensor, stage: int) -> Tensor:
        """Normalise the tokens of every stage."""
        normed: Tensor = self.stages[stage].get_submodule("norm")(tokens)
        return normed

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the map of the last stage, (B, R, rows, columns), as timm does."""
        return self.last_map(images)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Average a map (B, R, rows, columns) and map it to logits."""
        return super().forward_head(features.flatten(2).transpose(1, 2), pre_logits)

    def pool(self, tokens: Tensor) -> Tensor:
        """Average the tokens of the last stage: (B, R)."""
        return tokens.mean(dim=1)


class PVTv2Stage(nn.Module):
    """The modules of one stage."""

    def __init__(self, config: PVTv2Config, *, stage: int, rates: list[float]) -> None:
        super().__init__()
        kernel = NEXT_KERNEL if stage else FIRST_KERNEL
        self.embedding = PatchEmbedding(
            config.widths[stage - 1] if stage else config.channels,
            config.widths[stage],
            kernel_size=kernel,
            stride=NEXT_STRIDE if stage else config.first_stride,
            padding=kernel // 2,
        )
        self.blocks = nn.ModuleList(PVTv2Block(config, stage=stage, drop_rate=rate) for rate in rates)
        self.norm = nn.LayerNorm(config.widths[stage], eps=config.norm_eps)


class PVTv2Block(PyramidBlock):
    """A block whose MLP reads neighbouring tokens, which encodes their positions (section 3.4)."""

    def __init__(self, config: PVTv2Config, *, stage: int, drop_rate: float) -> None:
        is_linear = config.has_linear_attention
        super().__init__(
            config, stage=stage, drop_rate=drop_rate, pooled_side=POOLED_SIDE if is_linear else None
        )
        D = config.widths[stage]
        self.mlp = ConvolvedMlp(
            D, hidden_width=D * config.mlp_ratios[stage], has_relu=is_linear, dropout=config.dropout
        )

    def transform(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Apply the MLP on the grid."""
        return self.mlp(tokens, grid)


class ConvolvedMlp(nn.Module):
    """Dense layer, depth-wise convolution on the grid, GELU, dense layer; the -Li models have a ReLU first."""

    def __init__(self, width: int, *, hidden_width: int, has_relu: bool, dropout: float) -> None:
        super().__init__()
        self.has_relu = has_relu
        self.expand = nn.Linear(width, hidden_width)
        self.mix = nn.Conv2d(hidden_width, hidden_width, MIXING_KERNEL, padding=1, groups=hidden_width)
        self.contract = nn.Linear(hidden_width, width)
        self.hidden_dropout, self.dropout = Dropout(dropout), Dropout(dropout)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Map tokens (B, N, D) to (B, N, D)."""
        hidden = self.expand(tokens)  # (B, N, M)
        if self.has_relu:
            hidden = F.relu(hidden)
        hidden = F.gelu(to_tokens(self.mix(to_map(hidden, grid))))
        return self.dropout(self.contract(self.hidden_dropout(hidden)))


VARIANTS = {
    "PVT-v2-B0": PVTv2Config(widths=(32, 64, 160, 256), depths=(2, 2, 2, 2)),
    "PVT-v2-B1": PVTv2Config(depths=(2, 2, 2, 2)),
    "PVT-v2-B2": PVTv2Config(depths=(3, 4, 6, 3)),
    "PVT-v2-B2-Li": PVTv2Config(depths=(3, 4, 6, 3), has_linear_attention=True),
    "PVT-v2-B3": PVTv2Config(depths=(3, 4, 18, 3)),
    "PVT-v2-B4": PVTv2Config(depths=(3, 8, 27, 3)),
    "PVT-v2-B5": PVTv2Config(depths=(3, 6, 40, 3), mlp_ratios=(4, 4, 4, 4)),
}
# The official code and timm have the same names.
ALIASES = {name.lower().replace("-", "_"): name for name in VARIANTS}
