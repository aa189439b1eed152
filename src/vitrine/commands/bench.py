"""`vitrine bench`: how fast a model is on this device, beside timm's where that is installed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import options
from vitrine.commands.model_or_box import BOX

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitrine.evaluation.speed import Speed
    from vitrine.models import Model

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
    """Every speed that was measured, and the largest batches."""

    model: str
    device: str
    precision: str
    torch: str
    is_compiled: bool
    speeds: tuple["Speed", ...]
    largest: tuple[LargestBatch, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        compiled = ", compiled" if self.is_compiled else ""
        lines = [f"{self.model} on {self.device}, {self.precision}{compiled}, torch {self.torch}"]
        lines.append(
            f"{'size':>9} {'batch':>6} {'model':>8} {'images/s':>10} {'ms a batch':>11} {'slowest':>9}"
        )
        for speed in self.speeds:
            size = "x".join(map(str, speed.image_size))
            lines.append(
                f"{size:>9} {speed.batch_size:>6} {speed.model:>8} {speed.images_per_second:>10,.1f} "
                f"{speed.latency_ms:>11.2f} {speed.slowest_ms:>9.2f}"
            )
        lines += [
            f"Largest batch at {'x'.join(map(str, found.image_size))}: {found.batch_size:,} ({found.model})"
            for found in self.largest
        ]
        return "\n".join([*lines, *self.notes])


def bench(
    model: Annotated[
        str, Doc("A run folder, a file of weights, a hub id or a variant's name such as ViT-B/16.")
    ] = BOX,
    *,
    sizes: Annotated[str, Doc("Image sides in pixels, with commas between.")] = SIZES,
    batches: Annotated[str, Doc("Batch sizes, with commas between.")] = BATCHES,
    device: options.Device = "auto",
    precision: Annotated[
        Literal["auto", "bf16", "fp32"], Doc("What to compute in; auto is bf16 on CUDA, fp32 elsewhere.")
    ] = "auto",
    compile: Annotated[bool, Doc("Compile the models first (and the peer's alike).")] = False,
    peer: Annotated[bool, Doc("Time timm's model of the same shape in turns with it.")] = True,
    largest: Annotated[bool, Doc("Look for the largest batch that fits, on CUDA.")] = True,
    turns: Annotated[int, Doc("Turns of half a second; the median counts.")] = 5,
) -> BenchResult:
    """Measure images a second, latency and the largest batch at several sizes, beside timm where it is installed."""
    import torch

    from vitrine.checkpoints import load
    from vitrine.errors import ConfigError
    from vitrine.runtime.processes import joined_processes
    from vitrine.runtime.progress import quiet, track

    counts = _numbers(batches, "batches")
    wanted = _numbers(sizes, "sizes")
    if turns < 1:
        raise ConfigError(f"turns must be 1 or more, got {turns}")
    first = load(model).model
    with joined_processes(device) as processes:
        place = processes.device
        chosen: Literal["bf16", "fp32"]
        chosen = precision if precision != "auto" else "bf16" if place.type == "cuda" else "fp32"
        fitted, notes = _tiled(wanted, first)
        speeds: list[Speed] = []
        batch_limits: list[LargestBatch] = []
        for side in track(fitted, "Timing"):
            with quiet():  # what there is to say about the weights was said above
                ours = load(model, image_size=side).model
            models, note = _with_peer(ours, side, is_wanted=peer)
            notes = [*notes, *(found for found in note if found not in notes)]
            models = {name: found.eval().to(place) for name, found in models.items()}
            timed = {name: _compiled(found) if compile else found for name, found in models.items()}
            setting = _Setting(
                image_size=(side, side),
                channels=ours.config.channels,
                device=place,
                precision=chosen,
                turns=turns,
            )
            for count in counts:
                found_speeds = setting.speeds(timed, count)
                speeds += found_speeds
                if not found_speeds:
                    notes.append(f"A batch of {count} at {side} px does not fit")
            if largest and place.type == "cuda":
                batch_limits += setting.largest(models)
        if largest and place.type != "cuda":
            notes.append(
                f"The largest batch is not looked for on {place.type}: its memory is the machine's own"
            )
    return BenchResult(
        model=model,
        device=_device_name(place),
        precision=chosen,
        torch=torch.__version__,
        is_compiled=compile,
        speeds=tuple(speeds),
        largest=tuple(batch_limits),
        notes=tuple(notes),
    )


@dataclass(frozen=True, kw_only=True)
class _Setting:
    image_size: tuple[int, int]
    channels: int
    device: "torch.device"
    precision: Literal["bf16", "fp32"]
    turns: int

    def speeds(self, models: "Mapping[str, nn.Module]", batch_size: int) -> "list[Speed]":
        """Time all models at one batch size; nothing where one of them does not fit."""
        import torch

        from vitrine.evaluation.speed import measure_speeds

        try:
            return measure_speeds(
                models,
                image_size=self.image_size,
                batch_size=batch_size,
                channels=self.channels,
                device=self.device,
                precision=self.precision,
                turns=self.turns,
            )
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return []

    def largest(self, models: "Mapping[str, nn.Module]") -> list[LargestBatch]:
        """Find the largest batch of each model."""
        from vitrine.evaluation.speed import largest_batch

        return [
            LargestBatch(
                model=name,
                image_size=self.image_size,
                batch_size=largest_batch(
                    model,
                    image_size=self.image_size,
                    channels=self.channels,
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


def _with_peer(ours: "Model", side: int, *, is_wanted: bool) -> "tuple[dict[str, nn.Module], list[str]]":
    """Return our model, and timm's of the same shape where there is one."""
    from vitrine.models import ViT
    from vitrine.runtime.peers import import_peer

    models: dict[str, nn.Module] = {OURS: ours}
    if not is_wanted:
        return models, []
    if not isinstance(ours, ViT) or ours.config.stem is not None:
        return models, ["Not beside timm: only plain ViTs are compared"]
    try:
        VisionTransformer = import_peer("timm.models.vision_transformer").VisionTransformer
    except ImportError:
        return models, ["Not beside timm: it is not installed"]
    except RuntimeError as error:
        return models, [f"Not beside timm: it cannot be imported ({str(error).splitlines()[0]})"]
    config = ours.config
    models[PEER] = VisionTransformer(
        img_size=side,
        patch_size=config.patch_size,
        in_chans=config.channels,
        num_classes=config.num_classes or 0,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp_width / config.width,
    )
    return models, []


def _compiled(model: "nn.Module") -> "nn.Module":
    import torch

    # For each shape anew: what is timed is that shape, not a kernel that serves all of them.
    compiled: nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment]
    return compiled


def _device_name(device: "torch.device") -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({torch.get_num_threads()} threads)"
