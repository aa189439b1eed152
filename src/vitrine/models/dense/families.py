"""The families of dense models: how each is built, what it costs, and how its ViT is resampled."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from vitrine.models.config import ViTConfig
from vitrine.models.cost import Cost
from vitrine.models.dense.config import (
    DenseConfig,
    DetectorConfig,
    EoMTConfig,
    InstanceEoMTConfig,
    LinearSegmenterConfig,
    SegmenterConfig,
    YolosConfig,
    as_encoder,
    require_window,
)
from vitrine.models.dense.detector import Detector
from vitrine.models.dense.eomt import EoMT, InstanceEoMT
from vitrine.models.dense.linear import LinearSegmenter
from vitrine.models.dense.pyramid import level_grid
from vitrine.models.dense.segmenter import Segmenter
from vitrine.models.dense.yolos import Yolos
from vitrine.models.families import Family
from vitrine.models.positions import resample_grid
from vitrine.models.vit_cost import block_cost, vit_cost


def resized(config: DenseConfig, image_size: tuple[int, int]) -> DenseConfig:
    """Return the same model for windows of another size."""
    require_window(config, image_size)
    return dataclasses.replace(config, vit=dataclasses.replace(config.vit, image_size=image_size))


def resample(config: DenseConfig, image_size: tuple[int, int]) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return the function that resamples the ViT's table of positions for another window."""
    vit, new = config.vit, resized(config, image_size).vit.grid_size
    if vit.positions != "learned_1d" or vit.position_placement != "stem":
        return {}
    slots, rule = vit.num_position_slots, vit.position_resampling

    def resampled(table: Tensor) -> Tensor:
        kept, patches = table[:, :slots], table[:, slots:]
        return torch.cat([kept, resample_grid(patches, vit.grid_size, new, rule=rule)], dim=1)

    makers: dict[str, Callable[[Tensor], Tensor]] = {"vit.positions.0.table": resampled}
    if isinstance(config, YolosConfig) and config.has_middle_positions:
        T = config.num_detections

        def resampled_middle(tables: Tensor) -> Tensor:
            return torch.stack(
                [torch.cat([resampled(table[:, :-T]), table[:, -T:]], dim=1) for table in tables]
            )

        makers["decoder.middle_positions"] = resampled_middle
    return makers


def linear_cost(config: LinearSegmenterConfig) -> Cost:
    """Count the ViT and a linear layer on every patch."""
    N, K = config.vit.grid_size[0] * config.vit.grid_size[1], config.num_classes
    width = len(config.layers) * config.vit.width
    return added(
        vit_cost(config.vit), params=2 * width + K * (width + 1), macs=N * K * width, kept=N * (2 * width + K)
    )


def segmenter_cost(config: SegmenterConfig) -> Cost:
    """Count the ViT and the mask transformer's blocks on patches and classes."""
    N, K = config.vit.grid_size[0] * config.vit.grid_size[1], config.num_classes
    D, E, T = config.vit.width, config.decoder_width, N + K
    mlp_width = config.mlp_width or 4 * E
    # The blocks are those of a ViT of the decoder's width on a line of T patches.
    blocks = ViTConfig(
        image_size=(1, T), patch_size=(1, 1), width=E, depth=config.depth, num_heads=config.num_heads,
        mlp_width=mlp_width, num_classes=None, pooling="average", dropout=config.dropout,
    )  # fmt: skip
    params, macs, kept = (config.depth * number for number in block_cost(blocks))
    return added(
        vit_cost(config.vit),
        params=params + D * E + E + K * E + 2 * E + 2 * E * E + 2 * K,
        macs=macs + N * D * E + T * E * E + N * K * E,
        kept=kept + T * 4 * E + N * 2 * K,
    )


def eomt_cost(config: EoMTConfig) -> Cost:
    """Count the ViT, the queries in its last blocks, and the heads."""
    (rows, columns), D, Q, K = config.vit.grid_size, config.vit.width, config.num_queries, config.num_classes
    N, L = rows * columns, config.num_blocks
    long = longer(config.vit, Q)
    more = [L * (a - b) for a, b in zip(block_cost(long)[1:], block_cost(config.vit)[1:], strict=True)]
    params, macs, kept, cells = Q * D + (K + 1) * (D + 1) + 3 * D * (D + 1), Q * (K + 1 + 3 * D) * D, 0, N
    for _ in range(config.num_upscales):
        params += 4 * D * D + D + 9 * D + 2 * D
        macs += cells * 4 * D * D + 4 * cells * 9 * D
        kept += 4 * 4 * cells * D
        cells *= 4
    # Masks and classes are predicted before every block with queries, and once more after the last.
    reads = L + 1
    return added(
        vit_cost(config.vit), params=params, macs=more[0] + macs + Q * cells * D,
        kept=more[1] + reads * (kept + Q * (4 * D + cells)),
    )  # fmt: skip


def detector_cost(config: DetectorConfig) -> Cost:
    """Count the ViT, the levels of the pyramid, and both heads on each of them."""
    W, K, params, macs, kept = config.width, config.num_classes, len(config.levels), 0, 0
    outputs = K + 4
    heads = 2 * config.num_convs * 9 * W * W + outputs * 9 * W
    params += heads + outputs + 2 * config.num_convs * 2 * W
    for scale in config.levels:
        D, (rows, columns) = config.vit.width, config.vit.grid_size
        for step in range(max(round(math.log2(scale)), 0)):
            params += 2 * D * step + 4 * D * (D // 2) + D // 2  # the norm before the second doubling
            macs += rows * columns * 4 * D * (D // 2)
            D, rows, columns = D // 2, 2 * rows, 2 * columns
            kept += rows * columns * 3 * D
        rows, columns = level_grid(config.vit.grid_size, scale)
        params += D * W + 9 * W * W + 4 * W
        macs += rows * columns * (D * W + 9 * W * W + heads)
        # Before and after each norm, and after each activation.
        kept += rows * columns * (D + 4 * W + 2 * config.num_convs * 3 * W + 3 * outputs)
    return added(vit_cost(config.vit), params=params, macs=macs, kept=kept)


def yolos_cost(config: YolosConfig) -> Cost:
    """Count the ViT with detection tokens in all blocks, and their heads."""
    vit, D, T, K = config.vit, config.vit.width, config.num_detections, config.num_classes
    long = longer(vit, T)
    more = [vit.depth * (a - b) for a, b in zip(block_cost(long)[1:], block_cost(vit)[1:], strict=True)]
    reading = 4 * D * D + (K + 1) * D + 4 * D  # two hidden layers and an output for classes, and for boxes
    params = 2 * T * D + reading + 4 * D + (K + 1) + 4
    if config.has_middle_positions:
        rows = vit.num_position_slots + vit.grid_size[0] * vit.grid_size[1] + T
        params += (vit.depth - 1) * rows * D
    return added(vit_cost(vit), params=params, macs=more[0] + T * reading, kept=more[1] + T * (5 * D + K + 5))


def longer(vit: ViTConfig, count: int) -> ViTConfig:
    """Return the config of a ViT with the patches of another and some more, arranged in one row."""
    return dataclasses.replace(
        as_encoder(vit), image_size=(1, vit.num_tokens + count), patch_size=(1, 1), has_class_token=False,
        num_registers=0,
    )  # fmt: skip


def added(cost: Cost, *, params: int, macs: int, kept: int) -> Cost:
    """Add a decoder's counts to those of a ViT."""
    return dataclasses.replace(
        cost,
        params=cost.params + params,
        macs=cost.macs + macs,
        activations=cost.activations + kept,
        checkpointed_activations=cost.checkpointed_activations + kept,
    )


DENSE_FAMILIES = (
    Family(
        kind="LinearSegmenter",
        config=LinearSegmenterConfig,
        build=LinearSegmenter,
        cost=linear_cost,
        resample=resample,
        resized=resized,
    ),
    Family(
        kind="Segmenter",
        config=SegmenterConfig,
        build=Segmenter,
        cost=segmenter_cost,
        resample=resample,
        resized=resized,
    ),
    Family(
        kind="Detector",
        config=DetectorConfig,
        build=Detector,
        cost=detector_cost,
        resample=resample,
        resized=resized,
    ),
    Family(
        kind="YOLOS", config=YolosConfig, build=Yolos, cost=yolos_cost, resample=resample, resized=resized
    ),
    Family(kind="EoMT", config=EoMTConfig, build=EoMT, cost=eomt_cost, resample=resample, resized=resized),
    Family(
        kind="InstanceEoMT",
        config=InstanceEoMTConfig,
        build=InstanceEoMT,
        cost=eomt_cost,
        resample=resample,
        resized=resized,
    ),
)
