"""The cost of a ViT or hybrid: the formula of each part of eqs. 1 to 4.

Letters as in the paper: N patches, T tokens, D width, M MLP width, H heads.
"""

import dataclasses

from vitrine.models.config import ViTConfig
from vitrine.models.cost import Cost, stem_cost
from vitrine.models.packed import require_packable
from vitrine.models.stem_configs import HMlpStemConfig

PEG_CELLS = 9  # of the kernel of a position encoding generator
# Values per hidden unit that the backward pass reads: input and output of the activation; of a ReLU, the output.
KEPT_BY_ACTIVATION = {"gelu": 2, "relu": 1, "silu": 2, "quick_gelu": 3}
KEPT_BY_SWIGLU = 4  # gates before and after SiLU, values, their product
# Weights before and after dropout, and the mask.
KEPT_BY_ATTENTION_DROPOUT = 3


def vit_cost(config: ViTConfig) -> Cost:
    """Count a ViT or hybrid: the formula of each part of eqs. 1 to 4, added up."""
    D, L, T = config.width, config.depth, config.num_tokens
    params, macs, kept = embedding_cost(config)
    kept_maps = 0
    if config.stem:
        stem = stem_cost(config.stem, channels=config.channels, image_size=config.image_size)
        params, macs, kept_maps = params + stem.params, macs + stem.macs, stem.map_activations
    block_params, block_macs, block_kept = block_cost(config)
    head_params, head_macs = head_cost(config)
    params += L * block_params + norm_params(config, D) + head_params
    macs += L * block_macs + head_macs
    return Cost(
        params=params,
        macs=macs,
        tokens=T,
        activations=kept + L * block_kept,
        checkpointed_activations=kept + L * T * D + block_kept,
        map_activations=kept_maps,
        checkpointed_map_activations=kept_maps,
    )


def vit_cost_of_patches(config: ViTConfig, patches: int) -> Cost:
    """Count a ViT for pictures of `patches` patches each, whatever their shape; the parameters stay the model's."""
    require_packable(config)
    strip = patches * config.patch_size[0], config.patch_size[1]
    counted = dataclasses.replace(config, image_size=strip, positions_keep_aspect=False)
    return dataclasses.replace(vit_cost(counted), params=vit_cost(config).params)


def embedding_cost(config: ViTConfig) -> tuple[int, int, int]:
    """Count patches, tokens and positions (eq. 1): parameters, multiply-adds, numbers kept for backward."""
    D, T = config.width, config.num_tokens
    N = config.grid_size[0] * config.grid_size[1]
    in_channels = config.stem.out_channels if config.stem else config.channels
    patch = config.patch_size[0] * config.patch_size[1] * in_channels
    params = (
        patch * D
        + D * config.patch_bias
        + (config.num_prefix_tokens + config.num_registers) * D
        + position_params(config)
    )
    macs = N * patch * D
    kept = N * patch + T * D
    if config.positions == "peg":
        macs += len(config.peg_layers) * N * PEG_CELLS * D
        kept += len(config.peg_layers) * T * D
    if config.embedding_norm:
        params += norm_params(config, D)
        kept += T * D
    if isinstance(config.stem, HMlpStemConfig):
        params += 2 * D
        kept += N * D
    return params, macs, kept


def head_cost(config: ViTConfig) -> tuple[int, int]:
    """Count pooling, representation and heads (eq. 4): parameters and multiply-adds."""
    D, M, K, T = config.width, config.mlp_width, config.num_classes or 0, config.num_tokens
    params, macs = 0, 0
    if config.pooling == "attention":
        params += D + 4 * (D * D + D) + norm_params(config, D) + 2 * D * M + M + D
        macs += 2 * D * D + 2 * T * D * D + 2 * T * D + 2 * D * M
    R = config.representation_width
    if R:
        params += D * R + (R if config.representation_layer == "tanh" or config.projection_bias else 0)
        macs += D * R
    params += K * ((R or D) + 1)
    macs += K * (R or D)
    if config.has_distillation_token:
        params += K * (D + 1)
        macs += K * D
    return params, macs


def block_cost(config: ViTConfig) -> tuple[int, int, int]:
    """Count one encoder layer (eqs. 2 and 3): parameters, multiply-adds, numbers kept for backward."""
    D, M, T, H = config.width, config.mlp_width, config.num_tokens, config.num_heads
    E = 2 * M if config.mlp == "swiglu" else M  # outputs of the MLP's first layer
    params = 4 * D * D + D * (E + M) + 5 * D + E + 2 * norm_params(config, D)
    # Tokens with which each attends: all, or those of its line, in every other block of its row.
    attended = sum(config.grid_size) / 2 if config.attention == "axial" else T
    macs = T * (4 * D * D + D * (E + M)) + round(2 * T * attended * D)
    # Inputs of both norms and their outputs, q k v, the mixed values, what the activation keeps; softmax sums.
    kept_by_mlp = KEPT_BY_SWIGLU if config.mlp == "swiglu" else KEPT_BY_ACTIVATION[config.activation]
    kept = T * (8 * D + kept_by_mlp * M + H)
    if config.mlp_norm:
        params += norm_params(config, M)
        kept += T * M
    if config.attention_norm:
        params += norm_params(config, D)
        kept += T * D
    if config.rotary != "none":
        kept += 2 * T * D
    if not config.qkv_bias:
        params -= 3 * D
    if config.layer_scale is not None:
        params += 2 * D
        kept += 2 * T * D
    if config.qk_norm:
        params += 2 * norm_params(config, D // H)
        kept += 2 * T * D
    if config.positions == "relative":
        macs += T * (2 * T - 1) * D
        kept += T * (3 * T - 1) * H
    if config.positions == "relative_bias":
        kept += T * T * H
    if config.projection_drop_rate:
        kept += T * (2 * D + M)
    if config.attention_dropout:
        kept += KEPT_BY_ATTENTION_DROPOUT * T * T * H
    return config.num_branches * params, config.num_branches * macs, config.num_branches * kept


def norm_params(config: ViTConfig, width: int) -> int:
    """Count a norm's gains and, in a LayerNorm, biases."""
    return 2 * width if config.norm == "layer_norm" else width


def position_params(config: ViTConfig) -> int:
    """Count the position tables of every layer."""
    D, (rows, columns) = config.width, config.grid_size
    table = {
        "none": 0,
        "sincos_2d": 0,
        "peg": len(config.peg_layers) * (PEG_CELLS + 1) * D,
        "sincos_1d": (config.num_position_slots + rows * columns) * D,
        "learned_1d": (config.num_position_slots + rows * columns) * D,
        "learned_2d": config.num_position_slots * D + (rows + columns) * (D // 2),
        "factorised": (config.num_position_slots + rows + columns) * D,
        "relative_bias": ((2 * rows - 1) * (2 * columns - 1) + 3) * config.num_heads,
        "relative": (2 * config.num_tokens - 1) * D,
    }[config.positions]
    return table * (config.depth if config.position_placement == "every_layer" else 1)
