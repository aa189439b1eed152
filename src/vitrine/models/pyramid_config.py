"""The shape of PVT, PVT v2 and PCPVT: four stages, each with its width, depth, heads and reduction of keys."""

from dataclasses import dataclass

from vitrine.errors import ConfigError
from vitrine.models.config_checks import (
    LARGEST_DEPTH,
    LARGEST_WIDTH,
    MOST_STAGES,
    require_classes,
    require_positive,
    require_sizes,
    require_types,
)

Grid = tuple[int, int]
FIRST_STRIDE, NEXT_STRIDE = 4, 2


@dataclass(frozen=True, kw_only=True)
class PyramidConfig:
    """Four stages; each halves the map and widens the tokens."""

    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    widths: tuple[int, ...] = (64, 128, 320, 512)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    num_heads: tuple[int, ...] = (1, 2, 5, 8)
    mlp_ratios: tuple[int, ...] = (8, 8, 4, 4)
    reductions: tuple[int, ...] = (8, 4, 2, 1)
    """Cells per side of a stage's map that become one key (R of the paper's spatial-reduction attention)."""
    num_classes: int | None = 1000
    """None builds no head: the model returns its representation."""
    qkv_bias: bool = True
    norm_eps: float = 1e-6
    """Epsilon of the norms in blocks and after stages; those of embeddings and of reduced keys have 1e-5."""
    head_bias: float = 0.0
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    """Drop rate of the last block; it rises linearly from 0 in the first block."""
    activation_checkpointing: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("widths", "depths", "num_heads", "mlp_ratios", "reductions"):
            values = getattr(self, name)
            if len(values) != len(self.widths) or not 1 <= len(values) <= MOST_STAGES:
                raise ConfigError(
                    f"{name} must have one value for each of the {len(self.widths)} stages, got {len(values)}"
                )
            for value in values:
                require_positive(name, value, most=LARGEST_DEPTH if name == "depths" else LARGEST_WIDTH)
        require_positive("channels", self.channels)
        require_sizes("image_size", self.image_size)
        for width, heads in zip(self.widths, self.num_heads, strict=True):
            if width % heads:
                raise ConfigError(f"widths must be multiples of num_heads, got {width} and {heads}")
        if self.num_classes is not None:
            require_classes(self.num_classes)
        for name in ("dropout", "stochastic_depth"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")

    @property
    def representation_width(self) -> int:
        """Width of the last stage, the input of the head."""
        return self.widths[-1]

    @property
    def depth(self) -> int:
        """Blocks of all stages."""
        return sum(self.depths)

    @property
    def strides(self) -> tuple[int, ...]:
        """Pixels per side for one token of each stage."""
        return tuple(FIRST_STRIDE * NEXT_STRIDE**stage for stage in range(len(self.widths)))

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """Return the grid of every stage."""
        return tuple((image_size[0] // stride, image_size[1] // stride) for stride in self.strides)

    def reduced(self, grid: Grid, stage: int) -> Grid:
        """Return the grid of the keys of a stage."""
        step = self.reductions[stage]
        return grid[0] // step, grid[1] // step


def stride_with_reductions(config: PyramidConfig) -> tuple[int, int]:
    """Return the multiple that both sides of an image must be so that patches and reduced keys tile every map."""
    side = max(
        stride * reduction for stride, reduction in zip(config.strides, config.reductions, strict=True)
    )
    return side, side
