"""Speed of a model at several image sizes and batch sizes, compared with the hardware's limit and with timm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from torch import nn

from vitrine.evaluation.outputs import Precision
from vitrine.evaluation.speed import (
    Ceilings,
    Speed,
    highest,
    largest_batch,
    measure_ceilings,
    measure_speeds,
    timm_counterpart,
)
from vitrine.models import Model, ViT
from vitrine.models.config import ModelConfig
from vitrine.runtime.progress import track

OURS, TIMM = "vitrine", "timm"


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """The most images of one size that fit in memory at once."""

    model: str
    image_size: tuple[int, int]
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How models are timed."""

    device: torch.device
    precision: Precision
    turns: int
    is_compiled: bool
    finds_largest: bool


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Every speed with its floor, the largest batches, and what could not be measured."""

    ceilings: Ceilings
    speeds: tuple[Speed, ...]
    largest: tuple[LargestBatch, ...]
    too_large: tuple[tuple[tuple[int, int], int], ...]
    """Image size and batch size of every case that does not fit in memory."""
    has_timm: bool
    """Whether timm has a model of the same shape."""


def run_benchmark(
    model_at: Callable[[int], Model],
    *,
    sizes: Sequence[int],
    batches: Sequence[int],
    timing: Timing,
    timm: ModuleType | None,
) -> Benchmark:
    """Time the model at every image size and batch size; `model_at` returns it for an image side in pixels."""
    ceilings: list[Ceilings] = []
    speeds: list[tuple[ModelConfig, Speed]] = []
    largest: list[LargestBatch] = []
    too_large = []
    has_timm = False
    for side in track(sizes, "Timing"):
        ours = model_at(side)
        config = ours.config
        models = _compared(ours, timm, device=timing.device)
        has_timm = has_timm or TIMM in models
        timed = {name: _compiled(model) if timing.is_compiled else model for name, model in models.items()}
        for count in batches:
            # Measured again beside every batch size, so that all see the machine equally busy.
            ceilings.append(measure_ceilings(device=timing.device, precision=timing.precision))
            measured = _speeds(timed, config, count, timing)
            speeds += [(config, speed) for speed in measured]
            if not measured:
                too_large.append((config.image_size, count))
        if timing.finds_largest:
            largest += _largest(models, config, timing)
    best = highest(ceilings)
    return Benchmark(
        ceilings=best,
        speeds=tuple(
            replace(speed, floor_ms=best.floor_ms(config, images=speed.batch_size))
            for config, speed in speeds
        ),
        largest=tuple(largest),
        too_large=tuple(too_large),
        has_timm=has_timm,
    )


def _compared(ours: Model, timm: ModuleType | None, *, device: torch.device) -> dict[str, nn.Module]:
    """Return our model and, where timm has one of the same shape, timm's, ready on the device."""
    models: dict[str, nn.Module] = {OURS: ours}
    theirs = timm_counterpart(ours, timm) if timm is not None else None
    if theirs is not None:
        models[TIMM] = theirs
    return {name: model.eval().to(device) for name, model in models.items()}


def tiled_sizes(sizes: Sequence[int], model: Model) -> dict[int, int]:
    """Return the nearest size that the model's patches tile, by the size asked for."""
    if not isinstance(model, ViT):
        return {side: side for side in sizes}
    step = max(model.config.token_stride)
    return {side: max(1, round(side / step)) * step for side in sizes}


def _speeds(models: Mapping[str, nn.Module], config: ModelConfig, count: int, timing: Timing) -> list[Speed]:
    """Time all models at one batch size; nothing if one of them does not fit."""
    try:
        return measure_speeds(
            models,
            image_size=config.image_size,
            batch_size=count,
            channels=config.channels,
            device=timing.device,
            precision=timing.precision,
            turns=timing.turns,
        )
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return []


def _largest(models: Mapping[str, nn.Module], config: ModelConfig, timing: Timing) -> list[LargestBatch]:
    return [
        LargestBatch(
            model=name,
            image_size=config.image_size,
            batch_size=largest_batch(
                model,
                image_size=config.image_size,
                channels=config.channels,
                device=timing.device,
                precision=timing.precision,
            ),
        )
        for name, model in models.items()
    ]


def _compiled(model: nn.Module) -> nn.Module:
    # Once per shape: that shape is timed, not a kernel that serves all of them.
    compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    return compiled
