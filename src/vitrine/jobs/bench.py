"""The work behind `vitrine bench`: load a model at several sizes and time it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from vitrine.checkpoints import load
from vitrine.errors import ConfigError
from vitrine.evaluation.benchmark import LargestBatch, Timing, run_benchmark, tiled_sizes
from vitrine.evaluation.outputs import Precision
from vitrine.evaluation.speed import Ceilings, Speed, find_timm
from vitrine.jobs.model_argument import named_model
from vitrine.models import Model
from vitrine.runtime.processes import joined_processes
from vitrine.runtime.progress import quiet
from vitrine.runtime.result import Result
from vitrine.spelling import counted


@dataclass(frozen=True, kw_only=True, repr=False)
class BenchResult(Result):
    """Every speed with its floor, and the largest batches."""

    model: str
    device: str
    precision: str
    torch: str
    timm: str | None
    """Version of timm, if its model was timed too."""
    is_compiled: bool
    turns: int
    ceilings: Ceilings
    speeds: tuple[Speed, ...]
    largest: tuple[LargestBatch, ...]
    moved_sizes: dict[int, int]
    """Sizes that patches cannot tile, and the sizes that were timed instead."""
    too_large: tuple[tuple[tuple[int, int], int], ...]
    """Image sizes and batch sizes that do not fit in memory."""
    why_no_timm: str | None
    """Why timm was not timed although asked for."""
    is_below_floor: bool
    """Whether a speed is better than its floor: other work slowed the measurement of the limits."""
    skips_largest: bool
    """Whether the largest batch was requested on a kind of device that does not support the search."""


def measure_model_speed(
    model: str,
    *,
    sizes: str,
    batches: str,
    device: str,
    precision: Literal["auto", "bf16", "fp32"],
    compiles: bool,
    with_timm: bool,
    finds_largest: bool,
    turns: int,
) -> BenchResult:
    """Time a model at every size and batch size; both are lists such as `64,224`."""
    name = named_model(model, device=device)
    counts, wanted = _whole_numbers(batches, "batches"), _whole_numbers(sizes, "sizes")

    def model_at(side: int | None) -> Model:
        with quiet():  # notices about weights do not matter to their speed
            return load(name, image_size=side).model

    tiled = tiled_sizes(wanted, model_at(None))
    with joined_processes(device) as processes:
        place = processes.device
        chosen: Precision = precision if precision != "auto" else "bf16" if place.type == "cuda" else "fp32"
        timm, why_no_timm = find_timm() if with_timm else (None, None)
        measured = run_benchmark(
            model_at,
            sizes=list(dict.fromkeys(tiled.values())),
            batches=counts,
            timing=Timing(
                device=place,
                precision=chosen,
                turns=turns,
                is_compiled=compiles,
                finds_largest=finds_largest and place.type == "cuda",
            ),
            timm=timm,
        )
    if timm is not None and not measured.has_timm:
        timm, why_no_timm = None, "only plain ViTs can be compared"
    return BenchResult(
        model=name,
        device=_device_name(place),
        precision=chosen,
        torch=torch.__version__,
        timm=None if timm is None else timm.__version__,
        is_compiled=compiles,
        turns=turns,
        ceilings=measured.ceilings,
        speeds=measured.speeds,
        largest=measured.largest,
        moved_sizes={side: new for side, new in tiled.items() if side != new},
        too_large=measured.too_large,
        why_no_timm=why_no_timm,
        is_below_floor=_is_below_floor(measured.speeds),
        skips_largest=finds_largest and place.type != "cuda",
    )


def _is_below_floor(speeds: Sequence[Speed]) -> bool:
    return any(speed.floor_ms is not None and speed.floor_ms > speed.latency_ms for speed in speeds)


def _whole_numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"must be whole numbers above 0, such as 64,224; got {text!r}", option=option)
    return [int(part) for part in parts]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({counted(torch.get_num_threads(), 'thread')})"
