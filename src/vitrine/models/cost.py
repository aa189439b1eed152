"""The cost of a model: parameters, multiply-adds, memory; counted here for convolutions (hybrids' stems, BiT).

Arithmetic; only a registered network is run to be counted. A ViT is counted in vit_cost.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vitrine.errors import ConfigError
from vitrine.models.bit_config import BiTConfig
from vitrine.models.cnn_stem import counted_cnn
from vitrine.models.config import ModelConfig
from vitrine.models.families import family_of
from vitrine.models.stem_configs import (
    CnnStemConfig,
    HMlpStemConfig,
    ResNetStemConfig,
    StemConfig,
    TokensToTokenConfig,
)

# A backward pass costs twice a forward pass; a multiply-add is two operations.
TRAINING_FLOPS_PER_MAC = 6
FORWARD_SHARE = 1 / 3
# Kept for the backward pass: the convolution's output (the norm reads it) and the ReLU's output.
KEPT_MAPS = 2


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Counts for one image."""

    params: int
    macs: int
    """Multiply-adds of one forward pass; those of norms, activations and softmax are not counted, as is usual."""
    tokens: int | None
    """Length of the sequence; None for a ResNet."""
    activations: int
    """Values of tokens kept for the backward pass of one image (fused attention, nothing recomputed)."""
    checkpointed_activations: int
    """The same if every block is recomputed: the inputs of all blocks, and the values inside one."""
    map_activations: int = 0
    """Values of feature maps kept for the backward pass of one image (hybrids, BiT)."""
    checkpointed_map_activations: int = 0
    """The same if every unit of a BiT is recomputed."""


def cost_of(config: ModelConfig, *, patches: int | None = None) -> Cost:
    """Count a model at its built image size, or for pictures of so many patches each, whatever their shape."""
    family = family_of(config)
    if patches is None:
        cost: Cost = family.cost(config)
        return cost
    if family.cost_of_patches is None:
        raise ConfigError(
            f"a {family.kind} takes pictures of one size, which have no number of patches of their own",
            option="max_patches",
        )
    counted: Cost = family.cost_of_patches(config, patches)
    return counted


def training_exaflops(macs: int, *, images: float, epochs: float) -> float:
    """Return the exaFLOPs (1e18 operations) of a training run, as Table 6 counts them."""
    return TRAINING_FLOPS_PER_MAC * macs * images * epochs / 1e18


@dataclass(frozen=True)
class Conv:
    """One convolution of a ResNet: its shape, its output size and its norm."""

    in_channels: int
    out_channels: int
    kernel_size: int
    rows: int
    columns: int
    normed_channels: int

    @property
    def params(self) -> int:
        """Number of parameters: the kernel, and scale and bias of the norm."""
        return self.kernel_size**2 * self.in_channels * self.out_channels + 2 * self.normed_channels

    @property
    def macs(self) -> int:
        """Multiply-adds: one kernel per output cell."""
        return self.kernel_size**2 * self.in_channels * self.out_channels * self.rows * self.columns

    @property
    def outputs(self) -> int:
        """Numbers in its output."""
        return self.out_channels * self.rows * self.columns


def stem_cost(config: StemConfig, *, channels: int, image_size: tuple[int, int]) -> Cost:
    """Count the stem of a hybrid."""
    if isinstance(config, CnnStemConfig):
        params, macs, kept = counted_cnn(config, channels=channels, image_size=image_size)
        return map_cost(params=params, macs=macs, kept=kept)
    if isinstance(config, TokensToTokenConfig):
        return tokens_to_token_cost(config, channels=channels, image_size=image_size)
    if isinstance(config, HMlpStemConfig):
        W, cells = config.width, image_size[0] * image_size[1] // 16  # of 4 x 4 pixels
        first, second = 16 * channels * W, 4 * W * W
        return map_cost(
            params=first + second + 2 * 3 * W,  # biases, gains and biases of the norms
            macs=cells * first + cells // 4 * second,
            kept=(KEPT_MAPS + 1) * W * (cells + cells // 4),
        )
    convs = list(stem_convs(config, channels=channels, image_size=image_size))
    return map_cost(
        params=sum(conv.params for conv in convs),
        macs=sum(conv.macs for conv in convs),
        kept=KEPT_MAPS * sum(conv.outputs for conv in convs),
    )


def tokens_to_token_cost(config: TokensToTokenConfig, *, channels: int, image_size: tuple[int, int]) -> Cost:
    """Count a tokens-to-token module: projections, attention and MLP of every layer, on more tokens the earlier."""
    T, F = config.token_width, config.num_features
    params, macs, kept, (rows, columns) = 0, 0, 0, image_size
    for i, (kernel, stride) in enumerate(zip(config.kernels[:-1], config.strides[:-1], strict=True)):
        rows, columns = rows // stride, columns // stride
        N, gathered = rows * columns, kernel**2 * (T if i else channels)
        dense = 3 * T * gathered + 3 * T * T  # keys, queries and values; output; both layers of the MLP
        params += dense + 2 * gathered + 3 * T + 2 * T  # norms and biases
        macs += N * dense
        kept += N * (2 * gathered + 9 * T)
        if config.mixing == "performer":
            params += 3 * T + F * T
            macs += N * F * (4 * T + 1)
            kept += N * (2 * T + 4 * F)
        else:
            macs += 2 * N * N * T
    return map_cost(params=params, macs=macs, kept=kept + rows * columns * T)


def map_cost(*, params: int, macs: int, kept: int) -> Cost:
    """Build the cost of a stem, which keeps feature maps and has no tokens."""
    return Cost(
        params=params,
        macs=macs,
        tokens=None,
        activations=0,
        checkpointed_activations=0,
        map_activations=kept,
        checkpointed_map_activations=kept,
    )


def stem_convs(config: ResNetStemConfig, *, channels: int, image_size: tuple[int, int]) -> Iterator[Conv]:
    """List the convolutions of a hybrid's stem."""
    is_small = config.root == "3x3"
    rows, columns = image_size if is_small else halved(image_size)
    yield Conv(channels, config.width, 3 if is_small else 7, rows, columns, normed_channels=config.width)
    size, in_channels = (rows, columns) if is_small else halved((rows, columns)), config.width
    for i, num_units in enumerate(config.units):
        mid = config.width * 2**i
        for unit in range(num_units):
            before, size = size, halved(size) if i > 0 and unit == 0 else size
            yield Conv(in_channels, mid, 1, *before, normed_channels=mid)
            yield Conv(mid, mid, 3, *size, normed_channels=mid)
            yield Conv(mid, 4 * mid, 1, *size, normed_channels=4 * mid)
            if in_channels != 4 * mid or before != size:
                yield Conv(in_channels, 4 * mid, 1, *size, normed_channels=4 * mid)
            in_channels = 4 * mid


def bit_cost(config: BiTConfig) -> Cost:
    """Count a BiT ResNet; norms come before convolutions and the projection has none."""
    width, K = config.width * config.width_factor, config.num_classes or 0
    is_small = config.root == "3x3"
    rows, columns = config.image_size if is_small else halved(config.image_size)
    convs = [[Conv(config.channels, width, 3 if is_small else 7, rows, columns, normed_channels=0)]]
    size, in_channels = (rows, columns) if is_small else halved((rows, columns)), width
    for i, num_units in enumerate(config.units):
        mid = width * 2**i
        for unit in range(num_units):
            before, size = size, halved(size) if i > 0 and unit == 0 else size
            inside = [
                Conv(in_channels, mid, 1, *before, normed_channels=in_channels),
                Conv(mid, mid, 3, *size, normed_channels=mid),
                Conv(mid, 4 * mid, 1, *size, normed_channels=mid),
            ]
            if in_channels != 4 * mid or before != size:
                inside.append(Conv(in_channels, 4 * mid, 1, *size, normed_channels=0))
            convs.append(inside)
            in_channels = 4 * mid
    flat = [conv for unit in convs for conv in unit]
    inside_units = [KEPT_MAPS * sum(conv.outputs for conv in unit) for unit in convs]
    return Cost(
        params=sum(conv.params for conv in flat) + 2 * in_channels + K * (in_channels + 1),
        macs=sum(conv.macs for conv in flat) + K * in_channels,
        tokens=None,
        activations=0,
        checkpointed_activations=0,
        map_activations=sum(inside_units),
        checkpointed_map_activations=sum(unit[-1].outputs for unit in convs) + max(inside_units),
    )


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """Return the size after a stride of two with padding: half, rounded up."""
    return (size[0] + 1) // 2, (size[1] + 1) // 2
