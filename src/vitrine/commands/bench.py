"""`vitrine bench`: how fast a model is on this device, compared with the hardware's limit and with timm."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import BOX, as_model, as_numbers
from vitrine.errors import ConfigError

if TYPE_CHECKING:
    from vitrine.jobs.bench import BenchResult

# Appendix D.5 goes from 64 to 512 pixels.
SIZES = "64,128,224,384,512"
BATCHES = "1,8,64"


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
) -> "BenchResult":
    """Measure images/s, latency and the largest batch; compared with the hardware's limit and, if installed, timm."""
    if turns < 1:
        raise ConfigError(f"must be at least 1, got {turns}", option="turns")

    from vitrine.jobs.bench import measure_model_speed

    return measure_model_speed(
        as_model(model),
        sizes=as_numbers(sizes),
        batches=as_numbers(batches),
        device=device,
        precision=precision,
        compiles=compile,
        with_timm=peer,
        finds_largest=largest,
        turns=turns,
    )
