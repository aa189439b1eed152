"""`vitrine bench`: how fast a model is on this device, beside what the device allows and timm's where installed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_model, as_numbers
from vitrine.commands.model_or_box import BOX
from vitrine.spelling import counted

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitrine.evaluation.speed import Ceilings, Speed
    from vitrine.models import Model
    from vitrine.models.config import ModelConfig

# Appendix D.5 goes from 64 to 512 pixels.
SIZES = "64,128,224,384,512"
BATCHES = "1,8,64"
OURS, PEER = "vitrine", "timm"


@dataclass(frozen=True, kw_only=True)
class LargestBatch:
    """The most images of one size that fit at once."""

    model: str
    image_size: tuple[int, int]
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Every speed that was measured beside its floor, and the largest batches."""

    model: str
    device: str
    precision: str
    torch: str
    timm: str | None
    """Version of the peer, where it was timed too."""
    is_compiled: bool
    turns: int
    ceilings: "Ceilings"
    speeds: tuple["Speed", ...]
    largest: tuple[LargestBatch, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        compiled = ", compiled" if self.is_compiled else ""
        beside = f", beside timm {self.timm}" if self.timm else ""
        lines = [
            f"{self.model} on {self.device}, {self.precision}{compiled}, torch {self.torch}{beside}",
            f"Forward passes on random images that lie on the device; the median of {counted(self.turns, 'turn')}.",
            f"{'size':>7} {'batch':>6} {'model':>8} {'images/s':>9} {'ms a batch':>10} {'slowest':>8} "
            f"{'floor':>8} {'reached':>8} {'x timm' if self.timm else '':>7}".rstrip(),
        ]
        lines += [self._row(speed) for speed in self.speeds]
        lines.append(
            f"Floor, in ms: all products at {self.ceilings.flops_per_second / 1e12:,.2f} TFLOP/s, or weights and "
            f"images read once at {self.ceilings.bytes_per_second / 1e9:,.0f} GB/s, whichever is longer; "
            "both rates measured here."
        )
        lines += [
            f"Largest batch at {_size(found.image_size)}: {found.batch_size:,} ({found.model})"
            for found in self.largest
        ]
        return "\n".join([*lines, *self.notes])

    def _row(self, speed: "Speed") -> str:
        assert speed.floor_ms is not None  # bench gives every speed its floor
        peers = {(each.image_size, each.batch_size): each for each in self.speeds if each.model == PEER}
        peer = peers.get((speed.image_size, speed.batch_size))
        times = f"{peer.latency_ms / speed.latency_ms:.2f}" if peer and speed.model == OURS else ""
        return (
            f"{_size(speed.image_size):>7} {speed.batch_size:>6} {speed.model:>8} "
            f"{speed.images_per_second:>9,.1f} {speed.latency_ms:>10.2f} {speed.slowest_ms:>8.2f} "
            f"{speed.floor_ms:>8.2f} {speed.floor_ms / speed.latency_ms:>8.0%} {times:>7}"
        ).rstrip()


@documented
def bench(
    model: Annotated[
        str | Path, Doc("Run folder, weights file, hub id or variant name such as ViT-B/16")
    ] = BOX,
    *,
    sizes: Annotated[
        str | int | Sequence[int], Doc("Image heights and widths in pixels, separated by commas")
    ] = SIZES,
    batches: Annotated[str | int | Sequence[int], Doc("Batch sizes, separated by commas")] = BATCHES,
    device: options.Device = "auto",
    precision: Annotated[
        Literal["auto", "bf16", "fp32"], Doc("Number format; auto is bf16 on CUDA, fp32 elsewhere")
    ] = "auto",
    compile: Annotated[bool, Doc("Compile both models first")] = False,
    peer: Annotated[bool, Doc("Also time timm's model of the same shape, alternating with ours")] = True,
    largest: Annotated[bool, Doc("Search for the largest batch that fits, on CUDA")] = True,
    turns: Annotated[int, Doc("Measurements of half a second each; the median is reported")] = 5,
) -> BenchResult:
    """Measure images/s, latency and the largest batch; compared with the hardware's limit and, if installed, timm."""
    model, sizes, batches = as_model(model), as_numbers(sizes), as_numbers(batches)
    import torch

    from vitrine.checkpoints import load
    from vitrine.errors import ConfigError
    from vitrine.evaluation.speed import find_timm, highest
    from vitrine.runtime.processes import joined_processes
    from vitrine.runtime.progress import quiet, track

    counts = _numbers(batches, "batches")
    wanted = _numbers(sizes, "sizes")
    if turns < 1:
        raise ConfigError(f"turns must be 1 or more, got {turns}")
    with quiet():  # what is said about weights does not matter to their speed
        fitted, notes = _tiled(wanted, load(model).model)
    with joined_processes(device) as processes:
        place = processes.device
        chosen: Literal["bf16", "fp32"]
        chosen = precision if precision != "auto" else "bf16" if place.type == "cuda" else "fp32"
        setting = _Setting(
            device=place,
            precision=chosen,
            turns=turns,
            is_compiled=compile,
            finds_largest=largest and place.type == "cuda",
        )
        timm, reasons = find_timm() if peer else (None, [])
        notes += reasons
        measured: list[_Measured] = []
        for side in track(fitted, "Timing"):
            with quiet():
                ours = load(model, image_size=side).model
            measured.append(setting.measure(ours, timm=timm, counts=counts))
    notes += dict.fromkeys(note for each in measured for note in each.notes)
    ceilings = highest([found for each in measured for found in each.ceilings])
    speeds = tuple(speed for each in measured for speed in each.beside_floors(ceilings))
    if any(speed.floor_ms and speed.floor_ms > speed.latency_ms for speed in speeds):
        notes.append(
            "Faster than its floor: other work slowed the rates when they were measured; try again later"
        )
    if largest and place.type != "cuda":
        notes.append(f"The largest batch is not looked for on {place.type}: its memory is the machine's own")
    return BenchResult(
        model=model,
        device=_device_name(place),
        precision=chosen,
        torch=torch.__version__,
        timm=timm.__version__ if timm and any(speed.model == PEER for speed in speeds) else None,
        is_compiled=compile,
        turns=turns,
        ceilings=ceilings,
        speeds=speeds,
        largest=tuple(limit for each in measured for limit in each.largest),
        notes=tuple(notes),
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What was found at one image size."""

    config: "ModelConfig"
    ceilings: "list[Ceilings]"
    """Measured anew beside every batch size, so that all see the machine equally busy."""
    speeds: "list[Speed]"
    largest: list[LargestBatch]
    notes: list[str]

    def beside_floors(self, ceilings: "Ceilings") -> "list[Speed]":
        """Give every speed its floor."""
        return [
            replace(speed, floor_ms=ceilings.floor_ms(self.config, images=speed.batch_size))
            for speed in self.speeds
        ]


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """How all models are timed."""

    device: "torch.device"
    precision: Literal["bf16", "fp32"]
    turns: int
    is_compiled: bool
    finds_largest: bool

    def measure(self, ours: "Model", *, timm: ModuleType | None, counts: list[int]) -> _Measured:
        """Time our model and timm's at every batch size, and find the largest batch of each."""
        from vitrine.evaluation.speed import measure_ceilings, timm_counterpart

        models: dict[str, nn.Module] = {OURS: ours}
        notes = []
        theirs = timm_counterpart(ours, timm) if timm else None
        if theirs is not None:
            models[PEER] = theirs
        elif timm is not None:
            notes.append("Not beside timm: only plain ViTs are compared")
        models = {name: found.eval().to(self.device) for name, found in models.items()}
        timed = {name: _compiled(found) if self.is_compiled else found for name, found in models.items()}
        speeds: list[Speed] = []
        ceilings = []
        for count in counts:
            ceilings.append(measure_ceilings(device=self.device, precision=self.precision))
            found_speeds = self._speeds(timed, ours.config, count)
            speeds += found_speeds
            if not found_speeds:
                notes.append(f"A batch of {count} at {_size(ours.config.image_size)} px does not fit")
        return _Measured(
            config=ours.config,
            ceilings=ceilings,
            speeds=speeds,
            largest=self._largest(models, ours.config) if self.finds_largest else [],
            notes=notes,
        )

    def _speeds(self, models: "Mapping[str, nn.Module]", config: "ModelConfig", count: int) -> "list[Speed]":
        """Time all models at one batch size; nothing where one of them does not fit."""
        import torch

        from vitrine.evaluation.speed import measure_speeds

        try:
            return measure_speeds(
                models,
                image_size=config.image_size,
                batch_size=count,
                channels=config.channels,
                device=self.device,
                precision=self.precision,
                turns=self.turns,
            )
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return []

    def _largest(self, models: "Mapping[str, nn.Module]", config: "ModelConfig") -> list[LargestBatch]:
        """Find the largest batch of each model."""
        from vitrine.evaluation.speed import largest_batch

        return [
            LargestBatch(
                model=name,
                image_size=config.image_size,
                batch_size=largest_batch(
                    model,
                    image_size=config.image_size,
                    channels=config.channels,
                    device=self.device,
                    precision=self.precision,
                ),
            )
            for name, model in models.items()
        ]


def _numbers(text: str, name: str) -> list[int]:
    from vitrine.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{name} must be whole numbers with commas between, got {text!r}; try 64,224")
    return [int(part) for part in parts]


def _tiled(sizes: list[int], model: "Model") -> tuple[list[int], list[str]]:
    """Move sizes that patches cannot tile to the nearest that they can, and say so."""
    from vitrine.models import ViT

    if not isinstance(model, ViT):
        return sizes, []
    height, width = model.config.token_stride
    step = max(height, width)
    fitted = [max(1, round(side / step)) * step for side in sizes]
    moved = [f"{side} to {new}" for side, new in zip(sizes, fitted, strict=True) if side != new]
    return list(dict.fromkeys(fitted)), [
        f"Sizes moved to what patches of {step} tile: {', '.join(moved)}"
    ] if moved else []


def _compiled(model: "nn.Module") -> "nn.Module":
    import torch

    # For each shape anew: what is timed is that shape, not a kernel that serves all of them.
    compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    return compiled


def _device_name(device: "torch.device") -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({counted(torch.get_num_threads(), 'thread')})"


def _size(image_size: tuple[int, int]) -> str:
    return "x".join(map(str, image_size))
