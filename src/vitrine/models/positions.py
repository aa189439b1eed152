"""The position embeddings of appendix D.4 and of later work, each for any grid of patches.

Shapes: N = GH x GW patches on a grid of GH rows and GW columns, P slots for class and distillation token,
D width. Every absolute kind is a module that maps a grid to a table (1, P + N, D). A conditional encoding has none:
it is computed from the tokens.
"""

import math
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.choices import Resampling
from vitrine.models.config import ViTConfig
from vitrine.models.fixed import HasFixedParameters
from vitrine.models.line_positions import Relative1D

Grid = tuple[int, int]
POSITION_STD = 0.02
DINOV2_OFFSET = 0.1
OFFSETS_OF_LEADING = 3  # rows of a relative bias for tokens without a place


class Learned1D(nn.Module):
    """One learned vector per token, in raster order (the paper's default)."""

    def __init__(
        self, grid: Grid, *, width: int, num_slots: int, resampling: Resampling, keeps_aspect: bool = False
    ) -> None:
        super().__init__()
        self.grid, self.num_slots = grid, num_slots
        self.resampling, self.keeps_aspect = resampling, keeps_aspect
        self.table = nn.Parameter(torch.empty(1, num_slots + grid[0] * grid[1], width))  # E_pos of eq. 1

    def forward(self, grid: Grid) -> Tensor:
        """Return the table for `grid`, resampled in 2-D if it is not the model's own (section 3.2)."""
        if grid == self.grid:
            return self.table
        slots, patches = self.table[:, : self.num_slots], self.table[:, self.num_slots :]
        wide = square_around(grid) if self.keeps_aspect else grid
        patches = resample_grid(patches, self.grid, wide, rule=self.resampling)
        if wide != grid:
            patches = patches.view(1, *wide, -1)[:, : grid[0], : grid[1]].flatten(1, 2)
        return torch.cat([slots, patches], dim=1)


class SinCos1D(HasFixedParameters, Learned1D):
    """Fixed sines and cosines of the raster index, the class token first; resampled as a table (T2T-ViT)."""

    fixed: tuple[str, ...] = ("table",)

    def __init__(self, grid: Grid, *, width: int, num_slots: int, resampling: Resampling) -> None:
        super().__init__(grid, width=width, num_slots=num_slots, resampling=resampling)
        self.table.requires_grad_(False)

    def fill_table(self) -> None:
        """Compute the table: sine in even, cosine in odd channels, pairs of one frequency."""
        _, num_positions, width = self.table.shape
        # 10 000 is the longest wavelength of "Attention is all you need".
        pair = torch.arange(width, dtype=torch.float64).div(2, rounding_mode="floor")
        angle = torch.arange(num_positions, dtype=torch.float64)[:, None] / 10_000.0 ** (2 * pair / width)
        self.table.copy_(torch.where(torch.arange(width) % 2 == 0, angle.sin(), angle.cos()))


class Learned2D(nn.Module):
    """A learned half vector per row and one per column, concatenated."""

    def __init__(self, grid: Grid, *, width: int, num_slots: int, resampling: Resampling) -> None:
        super().__init__()
        self.grid, self.resampling = grid, resampling
        self.slots = nn.Parameter(torch.empty(1, num_slots, width))
        self.columns = nn.Parameter(torch.empty(1, grid[1], width // 2))  # the X-embedding
        self.rows = nn.Parameter(torch.empty(1, grid[0], width // 2))  # the Y-embedding

    def forward(self, grid: Grid) -> Tensor:
        """Return the table for `grid`; row and column vectors are resampled in 1-D."""
        (GH, GW), rule = grid, self.resampling
        columns = resample_grid(self.columns, (1, self.grid[1]), (1, GW), rule=rule)
        rows = resample_grid(self.rows, (self.grid[0], 1), (GH, 1), rule=rule)
        half = columns.shape[-1]
        patches = torch.cat(
            [columns[:, None].expand(1, GH, GW, half), rows[:, :, None].expand(1, GH, GW, half)], dim=-1
        )
        return torch.cat([self.slots, patches.flatten(1, 2)], dim=1)


class Factorised(nn.Module):
    """A learned vector per row plus one per column (NaViT, arXiv:2307.06304, section 3.2)."""

    def __init__(
        self, grid: Grid, *, width: int, num_slots: int, resampling: Resampling, keeps_aspect: bool = False
    ) -> None:
        super().__init__()
        self.grid, self.resampling, self.keeps_aspect = grid, resampling, keeps_aspect
        self.slots = nn.Parameter(torch.empty(1, num_slots, width)) if num_slots else None
        self.rows = nn.Parameter(torch.empty(1, grid[0], width))
        self.columns = nn.Parameter(torch.empty(1, grid[1], width))

    def forward(self, grid: Grid) -> Tensor:
        """Return the table for `grid`; row and column vectors are resampled in 1-D."""
        down, across = square_around(grid) if self.keeps_aspect else grid
        rows = resample_grid(self.rows, (self.grid[0], 1), (down, 1), rule=self.resampling)
        columns = resample_grid(self.columns, (1, self.grid[1]), (1, across), rule=self.resampling)
        patches = (rows[:, : grid[0], None] + columns[:, None, : grid[1]]).flatten(1, 2)
        return patches if self.slots is None else torch.cat([self.slots, patches], dim=1)


class SinCos2D(nn.Module):
    """Fixed sines and cosines of column and row; exact for every grid, nothing to learn or to resample."""

    def __init__(self, *, width: int, num_slots: int) -> None:
        super().__init__()
        self.num_slots = num_slots
        # 10 000 is the longest wavelength of "Attention is all you need"; a quarter of the width for each of
        # sin x, cos x, sin y, cos y.
        quarter = width // 4
        frequency = 10_000.0 ** (-torch.arange(quarter, dtype=torch.float64) / max(quarter - 1, 1))
        self.register_buffer("frequency", frequency.float(), persistent=False)

    def forward(self, grid: Grid) -> Tensor:
        """Return the table for `grid`; the slots of class and distillation token are zero."""
        frequency = cast(Tensor, self.frequency)
        rows, columns = torch.meshgrid(
            torch.arange(grid[0], device=frequency.device, dtype=frequency.dtype),
            torch.arange(grid[1], device=frequency.device, dtype=frequency.dtype),
            indexing="ij",
        )
        x, y = columns.flatten()[:, None] * frequency, rows.flatten()[:, None] * frequency  # (N, D / 4)
        patches = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1)  # (N, D)
        return F.pad(patches, (0, 0, self.num_slots, 0))[None]


class LogitBias(NamedTuple):
    """What relative positions add to the logits of attention, whatever the queries: (1, H, T, T)."""

    values: Tensor


class RelativeBias(nn.Module):
    """A learned number per head for each offset in rows and columns, added to the logits (BEiT, arXiv:2106.08254).

    Tokens before the patches have no place: three more numbers per head are for pairs from such a token to a patch,
    from a patch to such a token, and of two such tokens.
    """

    def __init__(
        self, grid: Grid, *, num_heads: int, num_leading_tokens: int, resampling: Resampling
    ) -> None:
        super().__init__()
        self.grid, self.num_leading_tokens, self.resampling = grid, num_leading_tokens, resampling
        self.table = nn.Parameter(torch.empty(math.prod(offsets(grid)) + OFFSETS_OF_LEADING, num_heads))

    def forward(self, grid: Grid) -> LogitBias:
        """Return the bias for patches on `grid`; offsets of another grid than the model's are resampled."""
        of_offsets = resample_offsets(self.table, self.grid, grid, rule=self.resampling)
        return LogitBias(of_offsets[self.index(grid)].permute(2, 0, 1)[None])

    def index(self, grid: Grid) -> Tensor:
        """Return the row of the table for every pair of tokens: (T, T)."""
        (rows, columns), (down, across) = grid, offsets(grid)
        S, N = self.num_leading_tokens, rows * columns
        # On the table's device: a copy from the host would stall every layer, and cannot be recorded.
        place = torch.arange(N, device=self.table.device)
        row, column = place // columns, place % columns
        index = torch.empty(S + N, S + N, dtype=torch.long, device=self.table.device)
        index[S:, S:] = (row[:, None] - row + rows - 1) * across + column[:, None] - column + columns - 1
        index[:S, S:], index[S:, :S], index[:S, :S] = (down * across + i for i in range(OFFSETS_OF_LEADING))
        return index


def offsets(grid: Grid) -> Grid:
    """Return how many different offsets in rows and columns two patches can have."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def resample_offsets(table: Tensor, old: Grid, new: Grid, *, rule: Resampling) -> Tensor:
    """Resample a table of relative biases (offsets + 3, H) for another grid."""
    count = math.prod(offsets(old))
    resampled = resample_grid(table[None, :count], offsets(old), offsets(new), rule=rule)[0]
    return torch.cat([resampled, table[count:]])


class ConditionalEncoding(nn.Module):
    """CPVT's position encoding generator (PEG, arXiv:2102.10882, section 3.2): a depth-wise convolution over the map.

    Its zero padding marks the border. It has no size of its own, so that it works on any grid.
    """

    def __init__(self, *, width: int, num_leading_tokens: int) -> None:
        super().__init__()
        self.num_leading_tokens = num_leading_tokens
        self.mix = nn.Conv2d(width, width, kernel_size=3, padding=1, groups=width)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Add the convolution to each patch of tokens (B, T, D); tokens before the patches are unchanged."""
        leading, patches = tokens[:, : self.num_leading_tokens], tokens[:, self.num_leading_tokens :]
        maps = patches.transpose(1, 2).reshape(patches.shape[0], -1, *grid)  # (B, D, GH, GW)
        encoded = (maps + self.mix(maps)).flatten(2).transpose(1, 2)
        return torch.cat([leading, encoded], dim=1) if self.num_leading_tokens else encoded


def square_around(grid: Grid) -> Grid:
    """Return the smallest square that a grid fits into."""
    return max(grid), max(grid)


def resample_grid(table: Tensor, old: Grid, new: Grid, *, rule: Resampling = "linear_aligned") -> Tensor:
    """Resample a table (1, N, D) from an old grid to a new one: (1, N', D).

    `linear_aligned` is the paper's (section 3.2, in the authors' code an order-1 zoom with the corner patches
    kept in place); the other rules are those of other libraries, for checkpoints trained with them.
    """
    if old == new:
        return table
    mode, align_corners, antialias = {
        "linear_aligned": ("bilinear", True, False),
        "bilinear": ("bilinear", False, False),
        "bilinear_antialias": ("bilinear", False, True),
        "bicubic": ("bicubic", False, False),
        "bicubic_aligned": ("bicubic", True, False),
        "bicubic_antialias": ("bicubic", False, True),
        "bicubic_offset": ("bicubic", False, False),
        "bilinear_offset": ("bilinear", False, False),
    }[rule]
    image = table.reshape(1, *old, -1).permute(0, 3, 1, 2).float()  # (1, D, GH, GW)
    if rule.endswith("_offset"):
        # DINOv2 uses a factor slightly above new / old, and the factor, not the sizes, places the samples.
        factor = tuple((after + DINOV2_OFFSET) / before for before, after in zip(old, new, strict=True))
        image = F.interpolate(image, scale_factor=factor, mode=mode, align_corners=align_corners)
    else:
        image = F.interpolate(image, size=new, mode=mode, align_corners=align_corners, antialias=antialias)
    return image.permute(0, 2, 3, 1).reshape(1, math.prod(new), -1).to(table.dtype)


def position_tables(config: ViTConfig) -> list[nn.Module]:
    """Create the position modules: none, one, or one per layer (appendix D.4)."""
    if config.positions == "none":
        return []
    if config.positions == "peg":
        leading = config.num_prefix_tokens + config.num_registers
        return [
            ConditionalEncoding(width=config.width, num_leading_tokens=leading) for _ in config.peg_layers
        ]
    count = config.depth if config.position_placement == "every_layer" else 1

    def table() -> nn.Module:
        D, slots, rule = config.width, config.num_position_slots, config.position_resampling
        if config.positions == "relative":
            return Relative1D(num_tokens=config.num_tokens, width=D)
        if config.positions == "relative_bias":
            return RelativeBias(
                config.grid_size, num_heads=config.num_heads, num_leading_tokens=config.num_leading_tokens,
                resampling=rule,
            )  # fmt: skip
        if config.positions == "sincos_2d":
            return SinCos2D(width=D, num_slots=slots)
        kinds = {"sincos_1d": SinCos1D, "learned_2d": Learned2D}
        if config.positions in kinds:
            return kinds[config.positions](config.grid_size, width=D, num_slots=slots, resampling=rule)
        kind = Factorised if config.positions == "factorised" else Learned1D
        return kind(
            config.grid_size, width=D, num_slots=slots, resampling=rule,
            keeps_aspect=config.positions_keep_aspect,
        )  # fmt: skip

    return [table() for _ in range(count)]


def initialise_positions(module: nn.Module) -> None:
    """Draw a table, or compute it; a conditional encoding is a convolution and is initialised like one."""
    if isinstance(module, SinCos1D):
        module.fill_table()
    elif isinstance(module, RelativeBias):
        nn.init.zeros_(module.table)
    elif not isinstance(module, ConditionalEncoding):
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=POSITION_STD)
