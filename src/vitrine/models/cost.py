"""The cost of a model without running it: parameters, multiply-adds, memory. Pure arithmetic, no torch.

Letters as in the paper: N patches, T tokens, D width, M MLP width, H heads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vitrine.models.config import BiTConfig, ModelConfig, ResNetStemConfig, ViTConfig
from vitrine.models.families import family_of

# A backward pass costs twice a forward pass; a multiply-add is two operations.
TRAINING_FLOPS_PER_MAC = 6
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
    """Numbers of tokens kept for the backward pass of one image (fused attention, nothing recomputed)."""
    checkpointed_activations: int
    """The same when every block is recomputed: its input, and one block's inside."""
    map_activations: int = 0
    """Numbers of feature maps kept for the backward pass of one image (hybrids, BiT)."""
    checkpointed_map_activations: int = 0
    """The same when every unit of a BiT is recomputed."""


def cost_of(config: ModelConfig) -> Cost:
    """Count a model at its built image size."""
    cost: Cost = family_of(config).cost(config)
    return cost


def training_exaflops(macs: int, *, images: float, epochs: float) -> float:
    """Return the exaFLOPs (1e18 operations) of a training run, as Table 6 counts them."""
    return TRAINING_FLOPS_PER_MAC * macs * images * epochs / 1e18


def vit_cost(config: ViTConfig) -> Cost:
    """Count a ViT or hybrid: the formula of each part of eqs. 1 to 4, added up."""
    D, M, L, K = config.width, config.mlp_width, config.depth, config.num_classes or 0
    T = config.num_tokens
    N = config.grid_size[0] * config.grid_size[1]
    params, macs, kept, kept_maps = 0, 0, 0, 0

    in_channels = config.channels
    if config.stem:
        stem = stem_cost(config.stem, channels=config.channels, image_size=config.image_size)
        params, macs, kept_maps = stem.params, stem.macs, stem.map_activations
        in_channels = config.stem.out_channels
    patch = config.patch_size[0] * config.patch_size[1] * in_channels
    params += patch * D + D + (config.num_prefix_tokens + config.num_registers) * D + position_params(config)
    macs += N * patch * D
    kept += N * patch + T * D

    block_params, block_macs, block_kept = block_cost(config)
    params += L * block_params
    macs += L * block_macs
    params += 2 * D  # the final norm
    if config.pooling == "attention":
        params += D + 4 * (D * D + D) + 2 * D + 2 * D * M + M + D
        macs += 2 * D * D + 2 * T * D * D + 2 * T * D + 2 * D * M
    R = config.representation_width
    if R:
        params += D * R + R
        macs += D * R
    params += K * ((R or D) + 1)
    macs += K * (R or D)
    if config.has_distillation_token:
        params += K * (D + 1)
        macs += K * D
    return Cost(
        params=params,
        macs=macs,
        tokens=T,
        activations=kept + L * block_kept,
        checkpointed_activations=kept + L * T * D + block_kept,
        map_activations=kept_maps,
        checkpointed_map_activations=kept_maps,
    )


def block_cost(config: ViTConfig) -> tuple[int, int, int]:
    """Count one encoder layer (eqs. 2 and 3): parameters, multiply-adds, numbers kept for backward."""
    D, M, T, H = config.width, config.mlp_width, config.num_tokens, config.num_heads
    params = 4 * D * D + 2 * D * M + 9 * D + M
    macs = T * (4 * D * D + 2 * D * M) + 2 * T * T * D
    # Inputs of both norms and their outputs, q k v, the mixed values, both sides of the GELU; softmax sums.
    kept = T * (8 * D + 2 * M + H)
    if not config.qkv_bias:
        params -= 3 * D
    if config.layer_scale is not None:
        params += 2 * D
        kept += 2 * T * D
    if config.qk_norm:
        params += 4 * (D // H)
        kept += 2 * T * D
    if config.positions == "relative":
        macs += T * (2 * T - 1) * D
        kept += T * (3 * T - 1) * H
    if config.dropout:
        kept += T * (2 * D + M)
    return params, macs, kept


def position_params(config: ViTConfig) -> int:
    """Count the position tables of every layer."""
    D, (rows, columns) = config.width, config.grid_size
    table = {
        "none": 0,
        "sincos_2d": 0,
        "learned_1d": (config.num_position_slots + rows * columns) * D,
        "learned_2d": config.num_position_slots * D + (rows + columns) * (D // 2),
        "relative": (2 * config.num_tokens - 1) * D,
    }[config.positions]
    return table * (config.depth if config.position_placement == "every_layer" else 1)


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


def stem_cost(config: ResNetStemConfig, *, channels: int, image_size: tuple[int, int]) -> Cost:
    """Count a hybrid's ResNet; every convolution is followed by a norm of its own."""
    convs = list(stem_convs(config, channels=channels, image_size=image_size))
    kept = KEPT_MAPS * sum(conv.outputs for conv in convs)
    return Cost(
        params=sum(conv.params for conv in convs),
        macs=sum(conv.macs for conv in convs),
        tokens=None,
        activations=0,
        checkpointed_activations=0,
        map_activations=kept,
        checkpointed_map_activations=kept,
    )


def stem_convs(config: ResNetStemConfig, *, channels: int, image_size: tuple[int, int]) -> Iterator[Conv]:
    """List the convolutions of a hybrid's stem."""
    rows, columns = halved(image_size)
    yield Conv(channels, config.width, 7, rows, columns, normed_channels=config.width)
    size, in_channels = halved((rows, columns)), config.width
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
