"""`vitrine study`: the paper's experiments at any scale, resumably, run by run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands.options import Device

if TYPE_CHECKING:
    from vitrine.jobs.study import StudyResult

ScaleName = Literal["tiny", "small", "medium", "paper"]


def study(
    name: Annotated[
        str,
        Doc("A study, several with commas between, all, list (claims and costs), or page (write a document)"),
    ],
    data: Annotated[str, Doc("Data to train on; for page, the folder of the studies' results")] = "",
    *,
    scale: Annotated[ScaleName, Doc("Size of models, images and schedules")] = "small",
    seeds: Annotated[int | None, Doc("Number of seeds [default: the study's own, 1 to 3]")] = None,
    out: Annotated[Path, Doc("Folder for results; for page, the Markdown file")] = Path("runs/studies"),
    target: Annotated[
        str | None,
        Doc("Data to fine-tune on and to draw few-shot images from; several with commas between"),
    ] = None,
    jobs: Annotated[int, Doc("Runs at the same time on the device, each in its own process")] = 1,
    steps: Annotated[float, Doc("Factor on the steps of every run")] = 1.0,
    compile: Annotated[bool, Doc("Compile every model; pays off for runs of several minutes")] = False,
    graphs: Annotated[
        bool, Doc("Record a step as a CUDA graph and replay it, at scales that ask for it")
    ] = True,
    rate: Annotated[
        float | None, Doc("TFLOP/s of the device's matrix products, for the estimate [default: measured]")
    ] = None,
    device: Device = "auto",
    workers: Annotated[int, Doc("Data-loading workers before the first run")] = 2,
) -> "StudyResult":
    """Run the paper's experiments and compare them with its claims; continues where it was stopped."""
    from vitrine.jobs.study import run_studies

    return run_studies(
        name,
        str(data),
        scale=scale,
        seeds=seeds,
        out=Path(out),
        target=None if target is None else str(target),
        jobs=jobs,
        steps=steps,
        compiles=compile,
        uses_graphs=graphs,
        rate=rate,
        device=device,
        workers=workers,
    )
