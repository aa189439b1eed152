"""The cost of an AxialResNet: convolutions as in BiT, and attention along lines. Pure arithmetic, no torch.

Letters: C channels that attention sees, H heads, K = C / H channels per head.
"""

from collections.abc import Iterator

from vitrine.models.axial_resnet_config import AxialResNetConfig
from vitrine.models.cost import KEPT_MAPS, Conv, Cost


def axial_resnet_cost(config: AxialResNetConfig) -> Cost:
    """Count an AxialResNet."""
    width, K = config.width, config.num_classes or 0
    is_small = config.root == "3x3"
    rows, columns = (side // (1 if is_small else 2) for side in config.image_size)
    root = Conv(config.channels, width, 3 if is_small else 7, rows, columns, normed_channels=width)
    params, macs, kept = root.params, root.macs, KEPT_MAPS * root.outputs
    inside, between = kept, kept
    for stage, num_units in enumerate(config.units):
        for unit in range(num_units):
            convs = list(unit_convs(config, stage, unit))
            grid = config.grid(stage, unit, config.image_size)
            of_lines = [attention_cost(config, stage, grid, length=length) for length in grid]
            params += sum(conv.params for conv in convs) + sum(one.params for one in of_lines)
            macs += sum(conv.macs for conv in convs) + sum(one.macs for one in of_lines)
            of_unit = KEPT_MAPS * sum(conv.outputs for conv in convs)
            of_unit += sum(one.map_activations for one in of_lines)
            kept += of_unit
            inside, between = max(inside, of_unit), between + convs[1].outputs
    R = config.representation_width
    return Cost(
        params=params + K * (R + 1),
        macs=macs + K * R,
        tokens=None,
        activations=0,
        checkpointed_activations=0,
        map_activations=kept,
        checkpointed_map_activations=between + inside,
    )


def unit_convs(config: AxialResNetConfig, stage: int, unit: int) -> Iterator[Conv]:
    """List the convolutions of a unit, each with a norm after it; the projection last."""
    width, out = config.attention_width(stage), config.out_width(stage)
    in_channels = out if unit else config.out_width(stage - 1) if stage else config.width
    stride = 2 if stage and not unit else 1
    before = config.grid(stage, unit, config.image_size)
    after = before[0] // stride, before[1] // stride
    yield Conv(in_channels, width, 1, *before, normed_channels=width)
    yield Conv(width, out, 1, *after, normed_channels=out)
    if in_channels != out or stride > 1:
        yield Conv(in_channels, out, 1, *after, normed_channels=out)


def attention_cost(config: AxialResNetConfig, stage: int, grid: tuple[int, int], *, length: int) -> Cost:
    """Count attention along all lines of one direction, each of `length` cells."""
    C, H = config.attention_width(stage), config.num_heads
    cells, pairs = grid[0] * grid[1], grid[0] * grid[1] * length
    is_batch_norm = config.norm == "batch_norm"
    # Scale and bias: of queries, keys and values; of the output, or of its two terms and the three of the logits.
    norms = 2 * 2 * C + (2 * 2 * C + 2 * 3 * H if is_batch_norm else 2 * C)
    # Three terms of half the channels in the logits, two of all of them in the output.
    macs = cells * 2 * C * C + pairs * (3 * C // 2 + 2 * C)
    # The inputs and outputs of norms and products, and the weights; batch norm has one for each term of a sum.
    kept = cells * 8 * C + pairs * H * 4 if is_batch_norm else cells * 6 * C + pairs * H
    return Cost(
        params=2 * C * C + norms + (2 * length - 1) * 2 * C // H,
        macs=macs,
        tokens=None,
        activations=0,
        checkpointed_activations=0,
        map_activations=kept,
        checkpointed_map_activations=kept,
    )
