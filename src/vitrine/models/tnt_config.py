"""The shape, the cost and the published variants of TNT (arXiv:2103.00112). Pure arithmetic, no torch.

Letters: N patches, W words per patch, E width of a word, D width of a patch.
"""

from dataclasses import dataclass
from typing import Literal

from vitrine.errors import ConfigError
from vitrine.models.choices import Resampling
from vitrine.models.config_checks import (
    LARGEST_DEPTH,
    require_choices,
    require_classes,
    require_positive,
    require_sizes,
    require_types,
)
from vitrine.models.cost import Cost
from vitrine.models.sizes import require_tiling

WORD_KERNEL = 7


@dataclass(frozen=True, kw_only=True)
class TNTConfig:
    """A Transformer in Transformer; defaults are those of TNT-S."""

    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    word_stride: int = 4
    """Pixels from one word of a patch to the next."""
    channels: int = 3
    width: int = 384
    depth: int = 12
    num_heads: int = 6
    mlp_width: int = 1536
    inner_width: int = 24
    inner_num_heads: int = 4
    inner_mlp_width: int = 96
    num_classes: int | None = 1000
    """None builds no head: the model returns its representation."""
    pooling: Literal["class_token", "average"] = "class_token"
    position_resampling: Resampling = "bicubic_antialias"
    qkv_bias: bool = False
    norm_eps: float = 1e-5
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    """Drop rate of the last block's branches; it rises linearly from 0 in the first block."""
    activation_checkpointing: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_choices(self)
        for name in ("channels", "word_stride"):
            require_positive(name, getattr(self, name))
        for part in ("", "inner_"):
            for name in ("width", "num_heads", "mlp_width"):
                require_positive(f"{part}{name}", getattr(self, f"{part}{name}"))
            width, heads = getattr(self, f"{part}width"), getattr(self, f"{part}num_heads")
            if width % heads:
                raise ConfigError(
                    f"{part}width must be a multiple of {part}num_heads, got {width} and {heads}"
                )
        require_positive("depth", self.depth, most=LARGEST_DEPTH)
        for name in ("image_size", "patch_size"):
            require_sizes(name, getattr(self, name))
        require_tiling(self.image_size, self.patch_size)
        if any(side % self.word_stride for side in self.patch_size):
            raise ConfigError(
                f"patch_size must be a multiple of word_stride, got {self.patch_size} and {self.word_stride}"
            )
        if self.num_classes is not None:
            require_classes(self.num_classes)
        for name in ("dropout", "stochastic_depth"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")

    @property
    def token_stride(self) -> tuple[int, int]:
        """Pixels (down, across) from one patch to the next."""
        return self.patch_size

    @property
    def grid_size(self) -> tuple[int, int]:
        """Patches (down, across) at the built image size."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def num_tokens(self) -> int:
        """Length of the outer sequence at the built image size."""
        return 1 + self.grid_size[0] * self.grid_size[1]

    @property
    def num_words(self) -> int:
        """Length of the inner sequence of every patch."""
        return (self.patch_size[0] // self.word_stride) * (self.patch_size[1] // self.word_stride)

    @property
    def representation_width(self) -> int:
        """Width of the head's input."""
        return self.width


def tnt_cost(config: TNTConfig) -> Cost:
    """Count a TNT: words, their sum into patches, and both transformers of every block."""
    D, E, W, K = config.width, config.inner_width, config.num_words, config.num_classes or 0
    N, T, L = config.num_tokens - 1, config.num_tokens, config.depth
    word = WORD_KERNEL**2 * config.channels
    all_words = W * E
    to_patch = 2 * all_words + all_words * D + 2 * D  # norm, projection without bias, norm
    inner = transformer_params(E, config.inner_mlp_width, qkv_bias=config.qkv_bias)
    outer = transformer_params(D, config.mlp_width, qkv_bias=config.qkv_bias)
    tables = W * E + D + T * D  # positions of words, class token, positions of patches
    block_macs = (
        N * transformer_macs(E, config.inner_mlp_width, tokens=W)
        + N * all_words * D
        + transformer_macs(D, config.mlp_width, tokens=T)
    )
    # The words' part counts once per patch. `to_patch` keeps the inputs and outputs of its norms.
    block_kept = (
        N * W * (8 * E + 2 * config.inner_mlp_width + config.inner_num_heads)
        + N * (2 * all_words + 2 * D)
        + T * (9 * D + 2 * config.mlp_width + config.num_heads)
    )
    if config.dropout:
        block_kept += N * W * (2 * E + config.inner_mlp_width) + T * (2 * D + config.mlp_width)
    embedded = N * config.patch_size[0] * config.patch_size[1] * config.channels
    kept = embedded + 3 * N * all_words + 2 * N * D + T * D
    return Cost(
        params=word * E + E + to_patch + D + tables + L * (inner + to_patch + outer) + 2 * D + K * (D + 1),
        macs=N * W * word * E + N * all_words * D + L * block_macs + K * D,
        tokens=T,
        activations=kept + L * block_kept,
        checkpointed_activations=kept + L * (N * all_words + T * D) + block_kept,
    )


def transformer_params(width: int, mlp_width: int, *, qkv_bias: bool) -> int:
    """Count the parameters of one attention layer, one MLP and their norms."""
    return 4 * width**2 + 2 * width * mlp_width + 6 * width + mlp_width + 3 * width * qkv_bias


def transformer_macs(width: int, mlp_width: int, *, tokens: int) -> int:
    """Count the multiply-adds of one attention layer and one MLP."""
    return tokens * (4 * width**2 + 2 * width * mlp_width) + 2 * tokens**2 * width


def tnt_variant(*, width: int, num_heads: int, inner_width: int, inner_num_heads: int) -> TNTConfig:
    """Return a config whose MLPs are four times as wide, as in all published ones."""
    return TNTConfig(
        width=width,
        num_heads=num_heads,
        mlp_width=4 * width,
        inner_width=inner_width,
        inner_num_heads=inner_num_heads,
        inner_mlp_width=4 * inner_width,
    )


TNT_TI = tnt_variant(width=192, num_heads=3, inner_width=12, inner_num_heads=2)
TNT_S = tnt_variant(width=384, num_heads=6, inner_width=24, inner_num_heads=4)
TNT_B = tnt_variant(width=640, num_heads=10, inner_width=40, inner_num_heads=4)
VARIANTS = {"TNT-Ti": TNT_TI, "TNT-S": TNT_S, "TNT-B": TNT_B}
# Names of the authors' code and of timm, which have no TNT-Ti.
ALIASES = {"tnt_s_patch16_224": "TNT-S", "tnt_b_patch16_224": "TNT-B"}
