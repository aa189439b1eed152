"""`vitrine study`: the paper's experiments at any scale, resumably, run by run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands.options import Device

if TYPE_CHECKING:
    from vitrine.studies.running.study_outcome import StudyResult

ScaleName = Literal["tiny", "small", "medium", "paper"]


def study(
    name: Annotated[
        str,
        Doc(
            "A study, several with commas between, all, list (what there is and costs), or page (a document)."
        ),
    ],
    data: Annotated[str, Doc("Data to train on; for page, the folder that studies were written to.")] = "",
    *,
    scale: Annotated[ScaleName, Doc("How large models, images and schedules are.")] = "small",
    seeds: Annotated[
        int | None, Doc("Seeds, 0 to this less one; by default the study's own two or three.")
    ] = None,
    out: Annotated[Path, Doc("Where to write; for page, the Markdown file.")] = Path("runs/studies"),
    target: Annotated[
        str | None, Doc("Data to transfer to and to draw few shots from; several with commas between.")
    ] = None,
    jobs: Annotated[int, Doc("Runs side by side on the device, each in a process of its own.")] = 1,
    steps: Annotated[float, Doc("Factor on the steps of every run.")] = 1.0,
    compile: Annotated[bool, Doc("Compile every model: worth it for runs of several minutes.")] = False,
    graphs: Annotated[
        bool, Doc("On CUDA, record a step of every run and replay it, where the scale says so.")
    ] = True,
    rate: Annotated[
        float | None, Doc("TFLOP/s of the device's matrix products, for the estimate; by default measured.")
    ] = None,
    device: Device = "auto",
    workers: Annotated[int, Doc("How many read image files before the first run.")] = 2,
) -> "StudyResult":
    """Run the paper's experiments and judge them by their rules; goes on where it was stopped."""
    from vitrine.jobs.study import run_studies

    return run_studies(
        name,
        data,
        scale=scale,
        seeds=seeds,
        out=Path(out),
        target=target,
        jobs=jobs,
        steps=steps,
        compiles=compile,
        uses_graphs=graphs,
        rate=rate,
        device=device,
        workers=workers,
    )
