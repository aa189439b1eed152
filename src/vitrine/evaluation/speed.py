"""Speed of models on this device: images per second, latency, the largest batch that fits (appendix D.5).

Models are timed in turns, so that other work on the machine affects all of them equally.
"""

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitrine.checkpoints.libraries import import_installed
from vitrine.evaluation.outputs import Precision
from vitrine.models import Model, ViT
from vitrine.models.config import ModelConfig
from vitrine.models.cost import cost_of
from vitrine.runtime.hardware import bytes_per_second, flops_per_second

Name = TypeVar("Name", bound=Hashable)
# Long enough that clock resolution and launch overhead do not matter.
TURN_SECONDS = 0.5
TURNS = 5
MOST_IMAGES = 2**16
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One model at one image size and batch size; `latency_ms` is for one batch."""

    model: str
    image_size: tuple[int, int]
    batch_size: int
    images_per_second: float
    latency_ms: float
    slowest_ms: float
    """Latency of the slowest turn; shows how much turns differ."""
    floor_ms: float | None = None
    """The least latency that the device allows, if its limits were measured."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The limits of a device, measured on it."""

    precision: Precision
    flops_per_second: float
    """Floating-point operations of a large square matrix product in that precision."""
    bytes_per_second: float
    """Bytes that a large copy reads and writes."""

    def floor_ms(self, config: ModelConfig, *, images: int) -> float:
        """Return the least time of a forward pass over `images`.

        Its multiply-adds at the rate of a matrix product, or its weights and images read once, whichever is longer.
        """
        cost = cost_of(config)
        image_bytes = config.channels * math.prod(config.image_size) * torch.float32.itemsize
        computing = 2 * cost.macs * images / self.flops_per_second
        reading = cost.params * DTYPES[self.precision].itemsize + images * image_bytes
        return 1000 * max(computing, reading / self.bytes_per_second)


def measure_ceilings(*, device: torch.device, precision: Precision) -> Ceilings:
    """Measure how fast a device multiplies matrices and copies bytes; takes about half a second."""
    return Ceilings(
        precision=precision,
        flops_per_second=flops_per_second(DTYPES[precision], device=device.type),
        bytes_per_second=bytes_per_second(device=device.type),
    )


def highest(ceilings: Sequence[Ceilings]) -> Ceilings:
    """Return the highest of several measurements of one device: other work can only lower them."""
    return Ceilings(
        precision=ceilings[0].precision,
        flops_per_second=max(each.flops_per_second for each in ceilings),
        bytes_per_second=max(each.bytes_per_second for each in ceilings),
    )


def measure_speeds(
    models: Mapping[str, nn.Module],
    *,
    image_size: tuple[int, int],
    batch_size: int,
    channels: int = 3,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    turns: int = TURNS,
    turn_seconds: float = TURN_SECONDS,
) -> list[Speed]:
    """Time the models in turns on the same random images, in evaluation mode; report the median turn."""
    device = torch.device(device)
    images = torch.randn(batch_size, channels, *image_size, device=device)
    runs = {name: _runner(model, images, precision) for name, model in models.items()}
    timed = time_in_turns(runs, device=device, turns=turns, turn_seconds=turn_seconds)
    return [
        Speed(
            model=name,
            image_size=image_size,
            batch_size=batch_size,
            images_per_second=batch_size / statistics.median(seconds),
            latency_ms=1000 * statistics.median(seconds),
            slowest_ms=1000 * max(seconds),
        )
        for name, seconds in timed.items()
    ]


def time_in_turns(
    runs: Mapping[Name, Callable[[], object]],
    *,
    device: torch.device | str = "cpu",
    turns: int = TURNS,
    turn_seconds: float = TURN_SECONDS,
) -> dict[Name, list[float]]:
    """Time functions in turns; return the seconds per call of every turn, by name."""
    device = torch.device(device)
    repeats = {}
    for name, run in runs.items():
        seconds = _timed(run, 1, device)  # the first pass also warms up
        seconds = min(seconds, _timed(run, 1, device))
        repeats[name] = max(1, round(turn_seconds / max(seconds, 1e-6)))
    seconds_of: dict[Name, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            seconds_of[name].append(_timed(run, repeats[name], device) / repeats[name])
    return seconds_of


def largest_batch(
    model: nn.Module,
    *,
    image_size: tuple[int, int],
    channels: int = 3,
    device: torch.device | str = "cuda",
    precision: Precision = "fp32",
    most: int = MOST_IMAGES,
) -> int:
    """Find the largest batch that fits in the device's memory: double, then bisect to 1 %."""
    device = torch.device(device)

    def fits(count: int) -> bool:
        try:
            run = _runner(model, torch.randn(count, channels, *image_size, device=device), precision)
            _timed(run, 1, device)
        except RuntimeError:  # out of memory, or more elements than a kernel can index
            if count == 1:
                raise
            return False
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()
        return True

    return search_largest(fits, most=most)


def search_largest(fits: Callable[[int], bool], *, most: int) -> int:
    """Find the largest count that fits, to 1 %, if all smaller ones fit too; 0 if not even one does."""
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def find_timm() -> tuple[ModuleType | None, str | None]:
    """Import timm, or return why it cannot be used."""
    try:
        return import_installed("timm"), None
    except ImportError:
        return None, "it is not installed"
    except RuntimeError as error:
        return None, f"it cannot be imported ({str(error).splitlines()[0]})"


def timm_counterpart(ours: Model, timm: ModuleType) -> nn.Module | None:
    """Build timm's model of the same shape; None for hybrids and ResNets, which it builds differently."""
    if not isinstance(ours, ViT) or ours.config.stem is not None or ours.config.num_branches > 1:
        return None
    config = ours.config
    model: nn.Module = timm.models.vision_transformer.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        in_chans=config.channels,
        num_classes=config.num_classes or 0,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_width / config.width,
        init_values=config.layer_scale,
        no_embed_class=not config.has_prefix_positions,
    )
    return model


def _runner(model: nn.Module, images: Tensor, precision: Precision) -> Callable[[], None]:
    kind = images.device.type
    model.eval()  # once, not in every pass: walking the modules would be timed too

    def run() -> None:
        casting = torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16")
        with torch.inference_mode(), casting:
            model(images)

    return run


def _timed(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    _synchronise(device)
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    _synchronise(device)
    return time.perf_counter() - began


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
