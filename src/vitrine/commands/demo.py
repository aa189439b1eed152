"""`vitrine demo`: the whole workflow once, at a small scale: check, fine-tune, report, inspect, predict."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented, options
from vitrine.commands.arguments import as_path

if TYPE_CHECKING:
    from vitrine.jobs.demo import DemoResult


@documented
def demo(
    *,
    out: Annotated[Path | str, Doc("Folder to write to; an earlier demonstration there is replaced")] = Path(
        "vitrine-demo"
    ),
    images: Annotated[int, Doc("Number of pictures to render")] = 480,
    steps: Annotated[
        int | None, Doc("Training steps of 32 images [default: ten passes over the pictures]")
    ] = None,
    device: options.Device = "auto",
) -> "DemoResult":
    """Run the whole workflow once on rendered pictures: about two minutes on two cores, no network needed."""
    from vitrine.jobs.demo import run_demo

    return run_demo(as_path(out), images=images, steps=steps, device=device)
