"""The Pyramid Vision Transformer (PVT, arXiv:2102.12122), top to bottom as in the paper.

Shapes: B images, C channels, N = GH x GW tokens of a stage on its grid, D width, R width of the last stage, P
tokens before the patches (the class token, in the last stage).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.choices import Resampling
from vitrine.models.dropout import Dropout
from vitrine.models.initialisation import DEIT_STD, initialise_linears
from vitrine.models.positions import Grid, Learned1D, resample_grid
from vitrine.models.pyramid import PatchEmbedding, Pyramid, PyramidBlock, drop_rates
from vitrine.models.pyramid_config import FIRST_STRIDE, NEXT_STRIDE, PyramidConfig, stride_with_reductions
from vitrine.models.sizes import require_tiling

# How the official code fits position tables to another size.
RESAMPLING: Resampling = "bilinear"


@dataclass(frozen=True, kw_only=True)
class PVTConfig(PyramidConfig):
    """A PVT; its class token is in the last stage, so nothing may be reduced there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reductions[-1] != 1:
            raise ConfigError(
                f"the last of reductions must be 1: the class token has no place on a map, got {self.reductions[-1]}"
            )
        require_tiling(self.image_size, self.token_stride)

    @property
    def token_stride(self) -> tuple[int, int]:
        """Multiple that both sides of an image must be, so that patches and reduced keys tile every map."""
        return stride_with_reductions(self)


class PVT(Pyramid):
    """Map images (B, C, height, width) to logits (B, classes), or to the representation if there is no head."""

    config: PVTConfig

    def __init__(self, config: PVTConfig) -> None:
        super().__init__()
        self.config = config
        rates, grids = drop_rates(config), config.grids(config.image_size)
        self.stages = nn.ModuleList(
            PVTStage(config, stage=stage, grid=grids[stage], rates=rates[stage])
            for stage in range(len(config.widths))
        )
        R, K = config.representation_width, config.num_classes
        self.class_token = nn.Parameter(torch.empty(1, 1, R))
        self.dropout = Dropout(config.dropout)
        self.norm = nn.LayerNorm(R, eps=config.norm_eps)
        self.head = nn.Linear(R, K) if K else None
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise every parameter as the authors do; parameters on the meta device are skipped."""
        if self.norm.weight.is_meta:
            return
        initialise_linears(self)  # convolutions keep torch's initialisation
        for name, parameter in self.named_parameters():
            if name == "class_token" or name.endswith("positions.table"):
                nn.init.trunc_normal_(parameter, std=DEIT_STD)
        if self.head is not None:
            nn.init.constant_(self.head.bias, self.config.head_bias)

    def require_size(self, image_size: tuple[int, int]) -> None:
        """Refuse a size that patches and reduced keys cannot tile."""
        require_tiling(image_size, self.config.token_stride)

    def begin_stage(self, maps: Tensor, stage: int) -> tuple[Tensor, Grid]:
        """Embed patches and add positions; the last stage begins with the class token: (B, P + N, D)."""
        modules = self.stages[stage]
        assert isinstance(modules, PVTStage)
        tokens, grid = modules.embedding(maps)
        if stage == len(self.stages) - 1:
            leading = self.class_token.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
            tokens = torch.cat([leading, tokens], dim=1)
        return self.dropout(tokens + modules.positions(grid).to(tokens.dtype)), grid

    def end_stage(self, tokens: Tensor, stage: int) -> Tensor:
        """Normalise after the last stage only."""
        return self.norm(tokens) if stage == len(self.stages) - 1 else tokens

    def pool(self, tokens: Tensor) -> Tensor:
        """Read the class token: (B, R)."""
        return tokens[:, 0]


class PVTStage(nn.Module):
    """The modules of one stage."""

    def __init__(self, config: PVTConfig, *, stage: int, grid: Grid, rates: list[float]) -> None:
        super().__init__()
        side = NEXT_STRIDE if stage else FIRST_STRIDE
        in_channels = config.widths[stage - 1] if stage else config.channels
        self.embedding = PatchEmbedding(in_channels, config.widths[stage], kernel_size=side, stride=side)
        num_slots = 1 if stage == len(config.widths) - 1 else 0
        self.positions = Learned1D(
            grid, width=config.widths[stage], num_slots=num_slots, resampling=RESAMPLING
        )
        self.blocks = nn.ModuleList(PyramidBlock(config, stage=stage, drop_rate=rate) for rate in rates)


def resample(config: PVTConfig, image_size: tuple[int, int]) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return the function that resamples each stage's position table for another image size."""
    require_tiling(image_size, config.token_stride)
    last = len(config.widths) - 1

    def resampled(old: Grid, new: Grid, num_slots: int) -> Callable[[Tensor], Tensor]:
        def change(table: Tensor) -> Tensor:
            slots, patches = table[:, :num_slots], table[:, num_slots:]
            return torch.cat([slots, resample_grid(patches, old, new, rule=RESAMPLING)], dim=1)

        return change

    grids = zip(config.grids(config.image_size), config.grids(image_size), strict=True)
    return {
        f"stages.{stage}.positions.table": resampled(old, new, int(stage == last))
        for stage, (old, new) in enumerate(grids)
    }


VARIANTS = {
    "PVT-Tiny": PVTConfig(depths=(2, 2, 2, 2)),
    "PVT-Small": PVTConfig(depths=(3, 4, 6, 3)),
    "PVT-Medium": PVTConfig(depths=(3, 4, 18, 3)),
    "PVT-Large": PVTConfig(depths=(3, 8, 27, 3)),
}
# As the official code calls them; timm has no PVT of the first version.
ALIASES = {name.lower().replace("-", "_"): name for name in VARIANTS}
