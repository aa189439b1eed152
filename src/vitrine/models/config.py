"""The shape and numerics of every model, as frozen records that validate themselves when created.

Sizes are (height, width). Defaults are the paper's (arXiv:2010.11929).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from vitrine.errors import ConfigError
from vitrine.models.bit_config import BiTConfig  # noqa: F401 (earlier versions had it here)
from vitrine.models.choices import (
    Activation,
    Attention,
    DropRates,
    Gelu,
    Initialisation,
    MlpKind,
    Norm,
    Placement,
    Pooling,
    Positions,
    Representation,
    Resampling,
    Rotary,
)
from vitrine.models.config_checks import (
    LARGEST_DEPTH,
    require_choices,
    require_classes,
    require_heads,
    require_positive,
    require_sizes,
    require_types,
)
from vitrine.models.sizes import as_size, require_tiling, shown  # noqa: F401 (earlier versions had them here)
from vitrine.models.stem_configs import ResNetStemConfig, StemConfig  # noqa: F401 (earlier versions had it here)
from vitrine.models.vit_checks import require_axial, require_positions, require_rotary, require_tokens
from vitrine.spelling import nearest

RATES = (
    "dropout", "position_dropout", "projection_dropout", "attention_dropout", "head_dropout", "stochastic_depth",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer or, with a stem, a hybrid."""

    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    """Pixels of the image or, in a hybrid, cells of the feature map."""
    channels: int = 3
    width: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_width: int = 3072
    stem: StemConfig | None = None

    num_classes: int | None = 1000
    """None builds no head: the model returns its representation."""
    pooling: Pooling = "class_token"
    has_class_token: bool | None = None
    """None: only if pooling reads it."""
    pools_leading_tokens: bool = True
    """Whether attention pooling reads class token and registers beside the patches; timm's models do not."""
    representation_width: int | None = None
    """Width of the layer between pooling and head; None for a linear head (section 3.1)."""
    representation_layer: Representation = "tanh"
    """Kind of that layer: dense and tanh (the pre-training head), or a `projection` to a space shared with text."""
    projection_bias: bool = False
    """With a `projection`: a bias, as in EVA-CLIP; CLIP has none."""
    unit_length: bool = False
    """Normalise the head's input to length 1, as classifiers built from texts do."""
    head_bias: float = 0.0
    """Initial bias of the head; -10 in the authors' I21k and JFT runs with sigmoid loss."""

    positions: Positions = "learned_1d"
    position_placement: Placement = "stem"
    position_resampling: Resampling = "linear_aligned"
    positions_keep_aspect: bool = False
    """Resample positions to the square around another grid and cut the grid out of its top left (timm's NaFlex)."""
    has_prefix_positions: bool = True
    """Whether class (and distillation) token have position slots of their own."""

    peg_layers: tuple[int, ...] = (0,)
    """With positions `peg` (CPVT): blocks followed by a position encoding generator; -1 is before the first."""

    rotary: Rotary = "none"
    """Rotate queries and keys by the place of their patch, as DINOv3 or EVA-02 does, in addition to `positions`."""
    rotary_base: float | None = None
    """Ratio of the longest wavelength to the shortest; None is 100 (DINOv3) or 10,000 (EVA)."""
    rotary_grid: tuple[int, int] | None = None
    """EVA: the grid of pre-training, to which other grids are stretched; None counts patches without stretching."""
    rotary_shift: float | None = None
    """DINOv3, in training, per image: shift coordinates (from -1 to 1) by up to this much per axis."""
    rotary_jitter: float | None = None
    """DINOv3, in training: multiply each axis by up to this factor or its inverse."""
    rotary_rescale: float | None = None
    """DINOv3, in training: multiply both axes by one factor up to this or its inverse."""

    num_registers: int = 0
    has_distillation_token: bool = False
    attention: Attention = "global"
    """`axial`: tokens attend along their row, in every other block along their column (appendix D.6)."""
    num_branches: int = 1
    """Attention layers side by side in a block, then as many MLPs (arXiv:2203.09795); 2 in DeiT III's 18x2."""
    patch_bias: bool = True
    embedding_norm: bool = False
    """A norm between embedding and first block (CLIP)."""
    mlp: MlpKind = "dense"
    """`swiglu`: the hidden layer is the product of two, one of them through SiLU; `activation` is not used then."""
    mlp_norm: bool = False
    """With `swiglu`: a norm of the hidden layer (EVA-02)."""
    activation: Activation = "gelu"
    gelu: Gelu = "tanh"
    """Form of the GELU, if that is the activation."""
    norm: Norm = "layer_norm"
    norm_eps: float = 1e-6
    norm_after_pooling: bool = False
    """Normalise the pooled vector instead of every token (timm's average pooling)."""
    layer_scale: float | None = None
    qkv_bias: bool = True
    key_bias: bool = True
    """False: the bias of the keys stays zero; queries and values keep theirs (DINOv3, EVA)."""
    qk_norm: bool = False
    attention_norm: bool = False
    """A norm of the mixed values of all heads, before the output projection (EVA-CLIP)."""
    attention_scale: float | None = None
    """Factor on queries times keys; None is 1 / sqrt(channels per head) (eq. 6)."""
    dropout: float = 0.0
    """Dropout after the positions and dense layers but q, k, v (appendix B.1); the next two fields override it."""
    position_dropout: float | None = None
    projection_dropout: float | None = None
    attention_dropout: float = 0.0
    """Dropout of attention weights; training then writes them out, as fused kernels cannot draw per image."""
    head_dropout: float = 0.0
    """Dropout of the head's input."""
    stochastic_depth: float = 0.0
    """Drop rate of the last block's branches; it rises linearly from 0 in the first block."""
    drop_rates: DropRates = "linear"
    """`constant` gives every block the rate `stochastic_depth` (DeiT III)."""
    initialisation: Initialisation = "vit"
    """Initialisation of new weights: as by ViT's authors, as by those of DeiT and its descendants, or (`mimetic`) as
    by ViT's, with attention that begins like that of trained models."""
    activation_checkpointing: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("channels", "width", "num_heads", "mlp_width"):
            require_positive(name, getattr(self, name))
        for name in ("depth", "num_branches"):
            require_positive(name, getattr(self, name), most=LARGEST_DEPTH)
        require_sizes("patch_size", self.patch_size)
        if len(self.image_size) == 2 and min(self.image_size) < 1:
            require_tiling(self.image_size, self.token_stride)  # its error names the sizes that fit
        require_sizes("image_size", self.image_size)
        require_choices(self)
        if self.num_classes is not None:
            require_classes(self.num_classes)
        if self.representation_width is not None:
            require_positive("representation_width", self.representation_width)
        require_heads(self.width, self.num_heads)
        require_tiling(self.image_size, self.token_stride)
        require_positions(self)
        require_rotary(self)
        require_tokens(self)
        require_axial(self)
        if self.mlp_norm and self.mlp != "swiglu":
            raise ConfigError(f"mlp_norm needs mlp='swiglu', got {self.mlp!r}", option="mlp_norm")
        if self.projection_bias and self.representation_layer != "projection":
            raise ConfigError(
                f"projection_bias needs representation_layer='projection', got {self.representation_layer!r}",
                option="projection_bias",
            )
        if self.num_registers:
            require_positive("num_registers", self.num_registers)
        for name in RATES:
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise ConfigError(f"{name} must be at least 0 and below 1, got {rate}")

    @property
    def position_drop_rate(self) -> float:
        """Dropout rate after the positions."""
        return self.dropout if self.position_dropout is None else self.position_dropout

    @property
    def projection_drop_rate(self) -> float:
        """Dropout rate after the dense layers of blocks."""
        return self.dropout if self.projection_dropout is None else self.projection_dropout

    @property
    def token_stride(self) -> tuple[int, int]:
        """Pixels (down, across) from one token to the next."""
        stride = self.stem.stride if self.stem else 1
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    @property
    def grid_size(self) -> tuple[int, int]:
        """Tokens (down, across) at the built image size."""
        return self.image_size[0] // self.token_stride[0], self.image_size[1] // self.token_stride[1]

    @property
    def reads_class_token(self) -> bool:
        """Whether the sequence begins with a class token."""
        return self.pooling == "class_token" if self.has_class_token is None else self.has_class_token

    @property
    def num_prefix_tokens(self) -> int:
        """Number of class and distillation tokens."""
        return int(self.reads_class_token) + int(self.has_distillation_token)

    @property
    def num_leading_tokens(self) -> int:
        """Number of tokens before the first patch."""
        return self.num_prefix_tokens + self.num_registers

    @property
    def num_position_slots(self) -> int:
        """Number of position slots before those of the patches."""
        return self.num_prefix_tokens if self.has_prefix_positions else 0

    @property
    def num_tokens(self) -> int:
        """Length of the sequence that the encoder sees at the built image size."""
        return self.num_leading_tokens + self.grid_size[0] * self.grid_size[1]


class ModelConfig(Protocol):
    """The config of any family: a frozen dataclass with at least these values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width that the model is built for."""

    @property
    def channels(self) -> int:
        """Channels of the images."""

    @property
    def num_classes(self) -> int | None:
        """Outputs of the head; None for no head."""

    @property
    def activation_checkpointing(self) -> bool:
        """Whether blocks are recomputed in the backward pass."""

    @property
    def representation_width(self) -> int | None:
        """Width of the head's input; in a ViT, of the hidden layer before it, if any."""

    def __hash__(self) -> int:
        """Return a hash: configs are used as cache keys."""


Config = TypeVar("Config", bound=ModelConfig)


def head_width(config: ModelConfig) -> int:
    """Return the width of the head's input."""
    width = config.representation_width
    if isinstance(config, ViTConfig):
        return width or config.width
    assert width is not None  # `register_family` requires it
    return width


def checked_layer(layer: int, depth: int) -> int:
    """Convert a layer index, negative from the end, to one from 0."""
    if not -depth <= layer < depth:
        raise ConfigError(f"layers go from 0 to {depth - 1} (or -{depth} to -1), got {layer}")
    return layer % depth


def with_options(config: Config, options: dict[str, Any]) -> Config:
    """Return the config with `options` changed; the error for an unknown option names the nearest one."""
    known = [field.name for field in dataclasses.fields(config)]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"a {type(config).__name__.removesuffix('Config')} model has no option {name!r}; "
                f"did you mean {nearest(name, known)[0]!r}?",
                suggestions=nearest(name, known),
            )
    return dataclasses.replace(config, **options)
