"""The shape and numerics of a BiT ResNet, the paper's baseline."""

from dataclasses import dataclass

from vitrine.errors import ConfigError
from vitrine.models.choices import Root
from vitrine.models.config_checks import (
    LARGEST_DEPTH,
    require_choices,
    require_classes,
    require_positive,
    require_sizes,
    require_types,
)
from vitrine.models.sizes import shown

NORM_GROUPS = 32
BIT_WIDTH = 64


@dataclass(frozen=True, kw_only=True)
class BiTConfig:
    """A BiT ResNet (v2, pre-activation, group norm, weight standardisation): the paper's baseline."""

    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    units: tuple[int, int, int, int] = (3, 4, 6, 3)
    width_factor: int = 1
    width: int = BIT_WIDTH
    """Channels of the root, before `width_factor` multiplies them."""
    root: Root = "7x7"
    """`7x7` quarters the image (BiT); `3x3` keeps its size, as is usual for pictures of 32 pixels."""
    num_classes: int | None = 1000
    norm_eps: float = 1e-5
    standardisation_std_eps: float = 0.0
    standardisation_variance_eps: float = 1e-10
    head_bias: float = 0.0
    activation_checkpointing: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        for count in self.units:
            require_positive("units", count, most=LARGEST_DEPTH)
        for name in ("channels", "width_factor", "width"):
            require_positive(name, getattr(self, name))
        require_sizes("image_size", self.image_size)
        if self.width % NORM_GROUPS:
            raise ConfigError(f"width must be a multiple of {NORM_GROUPS} (group norm), got {self.width}")
        require_choices(self)
        if self.num_classes is not None:
            require_classes(self.num_classes)
        # The root and three strides reduce this many pixels to one cell; smaller images leave only padding.
        smallest = 32 if self.root == "7x7" else 8
        if min(self.image_size) < smallest:
            raise ConfigError(
                f"image_size must be at least {smallest} for a BiT ResNet, got {shown(self.image_size)}"
            )

    @property
    def representation_width(self) -> int:
        """Channels of the last stage, the input of the head."""
        return 32 * self.width * self.width_factor

    @property
    def is_published(self) -> bool:
        """Whether BiT's own code can build this network."""
        return self.root == "7x7" and self.width == BIT_WIDTH
