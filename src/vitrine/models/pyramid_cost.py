"""The cost of PVT, PVT v2 and PCPVT, without running them. Arithmetic, no torch.

Letters: N tokens of a stage, S of its reduced keys, D width, M hidden width of the MLP, H heads.
"""

import math
from dataclasses import dataclass

from vitrine.models.cost import Cost
from vitrine.models.pcpvt import PCPVTConfig
from vitrine.models.pvt import PVTConfig
from vitrine.models.pvt_v2 import FIRST_KERNEL, MIXING_KERNEL, NEXT_KERNEL, PVTv2Config
from vitrine.models.pyramid_config import FIRST_STRIDE, NEXT_STRIDE, PyramidConfig

MIXING = MIXING_KERNEL**2


@dataclass(frozen=True)
class Part:
    """One block, or the other parts of a stage: parameters, multiply-adds, values kept for the backward pass."""

    params: int
    macs: int
    kept: int


def pvt_cost(config: PVTConfig) -> Cost:
    """Count a PVT: position tables in every stage, a class token in the last."""
    grids, widths = config.grids(config.image_size), config.widths
    tables = sum(math.prod(grid) * width for grid, width in zip(grids, widths, strict=True)) + widths[-1]
    last = config.representation_width
    return total(config, params=tables + last + 2 * last, num_leading=1)


def pvt_v2_cost(config: PVTv2Config) -> Cost:
    """Count a PVT v2: a norm after every stage."""
    return total(config, params=2 * sum(config.widths))


def pcpvt_cost(config: PCPVTConfig) -> Cost:
    """Count a PCPVT: a depth-wise convolution after the first block of every stage, one norm at the end."""
    grids = config.grids(config.image_size)
    cells = sum(math.prod(grid) * width for grid, width in zip(grids, config.widths, strict=True))
    params = (MIXING + 1) * sum(config.widths) + 2 * config.representation_width
    return total(config, params=params, macs=MIXING * cells, kept=cells)


def total(config: PyramidConfig, *, params: int, macs: int = 0, kept: int = 0, num_leading: int = 0) -> Cost:
    """Add the stages and the head to a family's other parts; `num_leading` tokens join the last stage."""
    checkpointed, largest = kept, 0
    num_stages = len(config.widths)
    for stage, grid in enumerate(config.grids(config.image_size)):
        leading = num_leading if stage == num_stages - 1 else 0
        N, depth = math.prod(grid) + leading, config.depths[stage]
        S = math.prod(config.reduced(grid, stage)) + leading
        embedding, block = embedding_cost(config, stage, math.prod(grid)), block_cost(config, stage, N, S)
        params += embedding.params + depth * block.params
        macs += embedding.macs + depth * block.macs
        kept += embedding.kept + depth * block.kept
        checkpointed += embedding.kept + depth * N * config.widths[stage]
        largest = max(largest, block.kept)
    head = (config.representation_width + 1) * (config.num_classes or 0)
    return Cost(
        params=params + head,
        macs=macs + config.representation_width * (config.num_classes or 0),
        tokens=math.prod(config.grids(config.image_size)[0]),
        activations=kept,
        checkpointed_activations=checkpointed + largest,
    )


def embedding_cost(config: PyramidConfig, stage: int, N: int) -> Part:
    """Count the patch embedding of a stage: convolution and norm."""
    D = config.widths[stage]
    in_channels = config.widths[stage - 1] if stage else config.channels
    kernel = NEXT_STRIDE if stage else FIRST_STRIDE
    if isinstance(config, PVTv2Config):
        kernel = NEXT_KERNEL if stage else FIRST_KERNEL
    weights = kernel**2 * in_channels * D
    return Part(params=weights + 3 * D, macs=N * weights, kept=3 * N * D)


def block_cost(config: PyramidConfig, stage: int, N: int, S: int) -> Part:
    """Count one block: reduced attention and MLP, with their norms."""
    D, H = config.widths[stage], config.num_heads[stage]
    M = D * config.mlp_ratios[stage]
    params = 4 * D * D + 2 * D * M + 6 * D + M + (3 * D if config.qkv_bias else 0)
    macs = N * (2 * D * D + 2 * D * M) + 2 * S * D * D + 2 * N * S * D
    # Inputs and outputs of both norms, queries, mixed values; keys and values; both sides of the GELU; softmax sums.
    kept = N * (6 * D + 2 * M + H) + 2 * S * D
    is_linear = isinstance(config, PVTv2Config) and config.has_linear_attention
    reduction = 1 if is_linear else config.reductions[stage]
    if is_linear or reduction > 1:
        params += reduction**2 * D * D + 3 * D
        macs += S * reduction**2 * D * D
        kept += 3 * S * D
    if isinstance(config, PVTv2Config):
        params += (MIXING + 1) * M
        macs += N * MIXING * M
        kept += N * M
    if config.dropout:
        kept += N * (2 * D + M)
    return Part(params=params, macs=macs, kept=kept)
