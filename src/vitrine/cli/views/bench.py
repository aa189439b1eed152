"""How `vitrine bench` shows its table of speeds."""

from collections.abc import Iterator

from vitrine.cli.lines import Line, Table
from vitrine.evaluation.benchmark import OURS, TIMM
from vitrine.evaluation.speed import Speed
from vitrine.jobs.bench import BenchResult
from vitrine.spelling import counted


def lines(result: BenchResult) -> Iterator[Line]:
    """Show one row per size, batch and model, then the meaning of the floor and the missing measurements."""
    compiled = ", compiled" if result.is_compiled else ""
    beside = f", compared with timm {result.timm}" if result.timm else ""
    yield f"{result.model} on {result.device}, {result.precision}{compiled}, torch {result.torch}{beside}"
    yield (
        f"Forward passes on random images that are on the device; median of {counted(result.turns, 'measurement')}."
    )
    header = ["size", "batch", "model", "images/s", "ms per batch", "slowest", "floor", "reached"]
    header += ["x timm"] if result.timm else []
    rows = [row(speed, result) for speed in result.speeds]
    yield Table(rows, header=header, right=[0, 1, *range(3, len(header))])
    yield (
        f"Floor in ms, the hardware's limit: all matrix products at "
        f"{result.ceilings.flops_per_second / 1e12:,.2f} TFLOP/s, or weights and images read once at "
        f"{result.ceilings.bytes_per_second / 1e9:,.0f} GB/s, whichever takes longer; both measured here."
    )
    for limit in result.largest:
        yield f"Largest batch at {size_text(limit.image_size)}: {limit.batch_size:,} ({limit.model})"
    yield from notes(result)


def row(speed: Speed, result: BenchResult) -> list[str]:
    """Show one speed; ours also as a multiple of timm's."""
    assert speed.floor_ms is not None  # bench gives every speed its floor
    cells = [
        size_text(speed.image_size),
        str(speed.batch_size),
        speed.model,
        f"{speed.images_per_second:,.1f}",
        f"{speed.latency_ms:.2f}",
        f"{speed.slowest_ms:.2f}",
        f"{speed.floor_ms:.2f}",
        f"{speed.floor_ms / speed.latency_ms:.0%}",
    ]
    if result.timm is None:
        return cells
    theirs = {(one.image_size, one.batch_size): one for one in result.speeds if one.model == TIMM}
    other = theirs.get((speed.image_size, speed.batch_size))
    is_compared = other is not None and speed.model == OURS
    return [*cells, f"{other.latency_ms / speed.latency_ms:.2f}" if other and is_compared else ""]


def notes(result: BenchResult) -> Iterator[str]:
    """State which sizes were changed and which speeds were not measured."""
    if result.moved_sizes:
        moved = ", ".join(f"{side} to {new}" for side, new in result.moved_sizes.items())
        yield f"Sizes changed to ones that the patches tile: {moved}"
    if result.why_no_timm is not None:
        yield f"Not compared with timm: {result.why_no_timm}"
    for image_size, count in result.too_large:
        yield f"A batch of {count} at {size_text(image_size)} px does not fit in memory"
    if result.is_below_floor:
        yield "Faster than its floor: other work slowed the measurement of the limits; try again later"
    if result.skips_largest:
        yield "The largest batch is searched for on CUDA only"


def size_text(image_size: tuple[int, int]) -> str:
    """Write height and width: `224x224`."""
    return "x".join(map(str, image_size))
