"""PCPVT, the pyramid with conditional positions of CPVT (arXiv:2102.10882) and Twins (arXiv:2104.13840, section 3.1).

PVT's geometry without position tables and class token: after the first block of every stage a depth-wise convolution
(PEG) adds a weighted sum of its neighbours to each token, and the tokens of the last stage are averaged.

Shapes: B images, C channels, N = GH x GW tokens of a stage on its grid, D width, R width of the last stage.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrine.models.initialisation import initialise_convolutions, initialise_linears
from vitrine.models.positions import ConditionalEncoding, Grid
from vitrine.models.pyramid import PatchEmbedding, Pyramid, PyramidBlock, drop_rates
from vitrine.models.pyramid_config import FIRST_STRIDE, NEXT_STRIDE, PyramidConfig, stride_with_reductions
from vitrine.models.sizes import require_tiling


@dataclass(frozen=True, kw_only=True)
class PCPVTConfig(PyramidConfig):
    """A PCPVT."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_tiling(self.image_size, self.token_stride)

    @property
    def token_stride(self) -> tuple[int, int]:
        """Multiple that both sides of an image must be, so that patches and reduced keys tile every map."""
        return stride_with_reductions(self)


class PCPVT(Pyramid):
    """Map images (B, C, height, width) to logits (B, classes), or to the representation if there is no head."""

    config: PCPVTConfig

    def __init__(self, config: PCPVTConfig) -> None:
        super().__init__()
        self.config = config
        rates = drop_rates(config)
        self.stages = nn.ModuleList(
            PCPVTStage(config, stage=stage, rates=rates[stage]) for stage in range(len(config.widths))
        )
        R, K = config.representation_width, config.num_classes
        self.norm = nn.LayerNorm(R, eps=config.norm_eps)
        self.head = nn.Linear(R, K) if K else None
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise every parameter as the authors do; parameters on the meta device are skipped."""
        if self.norm.weight.is_meta:
            return
        initialise_linears(self)
        initialise_convolutions(self)
        if self.head is not None:
            nn.init.constant_(self.head.bias, self.config.head_bias)

    def require_size(self, image_size: tuple[int, int]) -> None:
        """Refuse a size that patches and reduced keys cannot tile."""
        require_tiling(image_size, self.config.token_stride)

    def begin_stage(self, maps: Tensor, stage: int) -> tuple[Tensor, Grid]:
        """Embed patches: tokens (B, N, D) and their grid."""
        embedded: tuple[Tensor, Grid] = self.stages[stage].get_submodule("embedding")(maps)
        return embedded

    def after_block(self, tokens: Tensor, grid: Grid, *, stage: int, block: int) -> Tensor:
        """Add the conditional positions after the first block of a stage."""
        if block > 0:
            return tokens
        encoded: Tensor = self.stages[stage].get_submodule("positions")(tokens, grid)
        return encoded

    def no_weight_decay(self) -> set[str]:
        """Return the names of the position encodings, which the authors' and timm's optimizers do not decay."""
        return {name for name, _ in self.named_parameters() if ".positions." in name}

    def end_stage(self, tokens: Tensor, stage: int) -> Tensor:
        """Normalise after the last stage only."""
        return self.norm(tokens) if stage == len(self.stages) - 1 else tokens

    def pool(self, tokens: Tensor) -> Tensor:
        """Average the tokens of the last stage: (B, R)."""
        return tokens.mean(dim=1)


class PCPVTStage(nn.Module):
    """The modules of one stage."""

    def __init__(self, config: PCPVTConfig, *, stage: int, rates: list[float]) -> None:
        super().__init__()
        side = NEXT_STRIDE if stage else FIRST_STRIDE
        in_channels = config.widths[stage - 1] if stage else config.channels
        self.embedding = PatchEmbedding(in_channels, config.widths[stage], kernel_size=side, stride=side)
        self.blocks = nn.ModuleList(PyramidBlock(config, stage=stage, drop_rate=rate) for rate in rates)
        self.positions = ConditionalEncoding(width=config.widths[stage], num_leading_tokens=0)


VARIANTS = {
    "PCPVT-Small": PCPVTConfig(depths=(3, 4, 6, 3)),
    "PCPVT-Base": PCPVTConfig(depths=(3, 4, 18, 3)),
    "PCPVT-Large": PCPVTConfig(depths=(3, 8, 27, 3)),
}
# pcpvt_small_v0 in the official code, twins_pcpvt_small in timm.
ALIASES = {
    f"{before}{name.lower().replace('-', '_')}{after}": name
    for name in VARIANTS
    for before, after in (("", "_v0"), ("twins_", ""), ("", ""))
}
