"""The shape and numerics of an AxialResNet, and the published ones by name. Pure arithmetic, no torch."""

from dataclasses import dataclass

from vitrine.errors import ConfigError
from vitrine.models.bit_config import BIT_WIDTH, NORM_GROUPS
from vitrine.models.choices import MapNorm, Root
from vitrine.models.config_checks import (
    LARGEST_DEPTH,
    MOST_STAGES,
    require_choices,
    require_classes,
    require_positive,
    require_sizes,
    require_types,
)
from vitrine.models.sizes import require_tiling


@dataclass(frozen=True, kw_only=True)
class AxialResNetConfig:
    """An AxialResNet; the defaults are the ResNet-50 of appendix D.6."""

    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    units: tuple[int, ...] = (3, 4, 6, 3)
    width: int = BIT_WIDTH
    """Channels of the root; every unit's output has 4 times as many, doubled from stage to stage."""
    attention_factor: int = 1
    """Channels that attention sees in the first stage, over `width`; 2 in Axial-DeepLab."""
    num_heads: int = 8
    root: Root = "7x7"
    """`7x7` quarters the image; `3x3` keeps its size, as is usual for pictures of 32 pixels."""
    norm: MapNorm = "group_norm"
    """`batch_norm` is Axial-DeepLab: also of each term of the logits, and convolutions are not standardised."""
    norm_eps: float = 1e-4
    num_classes: int | None = 1000
    """None builds no head: the model returns its representation."""
    head_bias: float = 0.0
    activation_checkpointing: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_choices(self)
        require_positive("number of stages", len(self.units), most=MOST_STAGES)
        for count in self.units:
            require_positive("units", count, most=LARGEST_DEPTH)
        for name in ("channels", "width", "attention_factor", "num_heads"):
            require_positive(name, getattr(self, name))
        if self.norm == "group_norm" and self.width % NORM_GROUPS:
            raise ConfigError(f"width must be a multiple of {NORM_GROUPS} (group norm), got {self.width}")
        # Queries and keys have half the channels of values, so every head needs an even number.
        if self.attention_width(0) % (2 * self.num_heads):
            raise ConfigError(
                f"width times attention_factor must be a multiple of {2 * self.num_heads}, twice num_heads, "
                f"got {self.attention_width(0)}"
            )
        if self.num_classes is not None:
            require_classes(self.num_classes)
        require_sizes("image_size", self.image_size)
        require_tiling(self.image_size, self.token_stride)

    def attention_width(self, stage: int) -> int:
        """Return the channels that attention sees in a stage."""
        return self.attention_factor * self.width * 2**stage

    def out_width(self, stage: int) -> int:
        """Return the channels of a stage's output."""
        return 4 * self.width * 2**stage

    @property
    def root_stride(self) -> int:
        """Pixels per side for one cell after the root."""
        return 4 if self.root == "7x7" else 1

    @property
    def token_stride(self) -> tuple[int, int]:
        """Pixels (down, across) for one cell of the last stage."""
        stride = self.root_stride * 2 ** (len(self.units) - 1)
        return stride, stride

    def grid(self, stage: int, unit: int, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of the map that a unit attends to; the first unit of a stage halves it later."""
        stride = self.root_stride * 2 ** (stage - (stage > 0 and unit == 0))
        return image_size[0] // stride, image_size[1] // stride

    @property
    def representation_width(self) -> int:
        """Channels of the last stage, the input of the head."""
        return self.out_width(len(self.units) - 1)


def deeplab(width: int, *, units: tuple[int, ...] = (3, 4, 6, 3)) -> AxialResNetConfig:
    """Return an Axial-ResNet of Axial-DeepLab (section 4.1), as its published code builds it."""
    return AxialResNetConfig(units=units, width=width, attention_factor=2, norm="batch_norm", norm_eps=1e-5)


VARIANTS = {
    "AxialResNet-50": AxialResNetConfig(),
    # The widths of ResNet-50 times 0.5, 0.75 and 1; the first is only in the published code.
    "Axial-ResNet-26-S": deeplab(32, units=(1, 2, 4, 1)),
    "Axial-ResNet-S": deeplab(32),
    "Axial-ResNet-M": deeplab(48),
    "Axial-ResNet-L": deeplab(64),
}
# As the paper writes it in Figure 13, and as Axial-DeepLab's code calls its own.
ALIASES = {
    "AxialResNet50": "AxialResNet-50",
    "axial26s": "Axial-ResNet-26-S",
    "axial50s": "Axial-ResNet-S",
    "axial50m": "Axial-ResNet-M",
    "axial50l": "Axial-ResNet-L",
}
