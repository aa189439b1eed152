"""The stems of hybrids, as frozen records: how images become the feature map that patches are cut from.

Every stem has a `stride` (pixels per side for one cell of its map) and `out_channels`; `stems.py` builds it.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vitrine.errors import ConfigError
from vitrine.models.choices import Root
from vitrine.models.config_checks import (
    LARGEST_DEPTH,
    MOST_STAGES,
    require_choices,
    require_positive,
    require_types,
)

Mixing = Literal["performer", "transformer"]
# The two steps of the hMLP stem before the patches: 4 pixels, then 2 cells.
HMLP_STRIDE = 8


@dataclass(frozen=True, kw_only=True)
class ResNetStemConfig:
    """The convolutional half of a hybrid (section 4.1): a root and post-activation bottleneck stages."""

    units: tuple[int, ...] = (3, 4, 9)
    """Bottleneck units in each stage; empty for the root alone."""
    width: int = 64
    root: Root = "7x7"
    """`7x7` quarters the image, as in the paper; `3x3` keeps its size, for pictures of 32 or 64 pixels."""
    norm_eps: float = 1e-6
    standardisation_std_eps: float = 1e-5
    standardisation_variance_eps: float = 0.0

    def __post_init__(self) -> None:
        require_types(self)
        if len(self.units) > MOST_STAGES:
            raise ConfigError(f"a stem has at most {MOST_STAGES} stages, got {len(self.units)}")
        for count in self.units:
            require_positive("stem units", count, most=LARGEST_DEPTH)
        require_positive("stem width", self.width)
        require_choices(self)

    @property
    def stride(self) -> int:
        """Pixels per side for one cell of the map: 4 (or 1) after the root, doubled by all stages but the first."""
        return (4 if self.root == "7x7" else 1) * 2 ** max(len(self.units) - 1, 0)

    @property
    def out_channels(self) -> int:
        """Channels of the feature map that the transformer sees."""
        return 4 * self.width * 2 ** (len(self.units) - 1) if self.units else self.width


@dataclass(frozen=True, kw_only=True)
class HMlpStemConfig:
    """The hierarchical MLP stem (arXiv:2203.09795): patches grow from 4 to 8 to 16 pixels, a batch norm after each.

    The stem makes cells of 8 pixels; the patch projection of 2 x 2 cells is the last step, and is normalised too.
    """

    width: int = 96
    """Channels of the first two steps; a quarter of the transformer's width in the paper."""

    def __post_init__(self) -> None:
        require_types(self)
        require_positive("stem width", self.width)

    @property
    def stride(self) -> int:
        """Pixels per side for one cell of the feature map."""
        return HMLP_STRIDE

    @property
    def out_channels(self) -> int:
        """Channels of the feature map that the transformer sees."""
        return self.width


@dataclass(frozen=True, kw_only=True)
class CnnStemConfig:
    """A convolutional network from outside, by the name it was registered under (`register_cnn`)."""

    name: str
    stride: int
    out_channels: int

    def __post_init__(self) -> None:
        require_types(self)
        require_positive("stem stride", self.stride)
        require_positive("stem out_channels", self.out_channels)


@dataclass(frozen=True, kw_only=True)
class TokensToTokenConfig:
    """The tokens-to-token module of T2T-ViT (arXiv:2101.11986): soft splits with attention between them."""

    mixing: Mixing = "performer"
    """Attention between the splits: linear in the number of tokens, or softmax."""
    kernels: tuple[int, ...] = (7, 3, 3)
    strides: tuple[int, ...] = (4, 2, 2)
    token_width: int = 64
    """Width of the tokens between the splits."""
    performer_dropout: float = 0.1
    """Dropout of performers only, as in the authors' code; independent of the model's dropout."""
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        require_types(self)
        require_choices(self)
        require_positive("stem token_width", self.token_width)
        if not 2 <= len(self.kernels) == len(self.strides) <= MOST_STAGES:
            raise ConfigError(
                f"a tokens-to-token stem has 2 to {MOST_STAGES} splits, each with a kernel and a stride, "
                f"got {self.kernels} and {self.strides}"
            )
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            require_positive("stem stride", stride)
            if kernel < stride or (stride == 1 and kernel % 2 == 0):
                raise ConfigError(
                    f"splits of {kernel} cells every {stride} do not keep the map's proportions"
                )
        if not 0 <= self.performer_dropout < 1:
            raise ConfigError(
                f"performer_dropout must be at least 0 and below 1, got {self.performer_dropout}"
            )

    @property
    def splits(self) -> tuple[tuple[int, int, int], ...]:
        """Kernel, stride and padding of every split; the padding makes the map smaller by exactly the stride."""
        return tuple(
            (kernel, stride, (kernel - stride + 1) // 2)
            for kernel, stride in zip(self.kernels, self.strides, strict=True)
        )

    @property
    def stride(self) -> int:
        """Pixels per side for one cell of the last map."""
        return math.prod(self.strides)

    @property
    def out_channels(self) -> int:
        """Values that the last split gathers for one cell."""
        return self.token_width * self.kernels[-1] ** 2

    @property
    def num_features(self) -> int:
        """Random features of a performer."""
        return max(self.token_width // 2, 1)


StemConfig = ResNetStemConfig | HMlpStemConfig | CnnStemConfig | TokensToTokenConfig
STEM_KINDS: dict[str, type[Any]] = {
    "resnet": ResNetStemConfig,
    "hmlp": HMlpStemConfig,
    "cnn": CnnStemConfig,
    "t2t": TokensToTokenConfig,
}
"""Config of each kind of stem, by its name in records."""


def stem_to_json(stem: StemConfig) -> dict[str, Any]:
    """Return a stem as plain values, its kind included."""
    kind = next(kind for kind, config in STEM_KINDS.items() if type(stem) is config)
    return {"kind": kind, **asdict(stem)}


def stem_from_json(values: dict[str, Any]) -> StemConfig:
    """Read a stem; records of earlier versions name no kind: their stems are ResNets."""
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    kind = options.pop("kind", "resnet")
    if kind not in STEM_KINDS:
        raise ConfigError(f"stems of the kind {kind!r} are unknown here; known: {', '.join(STEM_KINDS)}")
    stem: StemConfig = STEM_KINDS[kind](**options)
    return stem
