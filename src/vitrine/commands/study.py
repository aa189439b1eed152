"""`vitrine study`: the paper's experiments at any scale, resumably, run by run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import as_path, as_texts
from vitrine.commands.options import Device

if TYPE_CHECKING:
    from vitrine.jobs.study import StudyResult

ScaleName = Literal["tiny", "little", "small", "medium", "paper"]


@documented
def study(
    name: Annotated[
        str,
        Doc("Study, several separated by commas, all, list (names and costs), or page (write a document)"),
    ],
    data: Annotated[
        str | Path, Doc("Data to train on; for page, the folder with the results of studies")
    ] = "",
    *,
    scale: Annotated[ScaleName, Doc("Size of models, images and schedules")] = "small",
    seeds: Annotated[int | None, Doc("Number of seeds [default: the study's own, 1 to 3]")] = None,
    out: Annotated[Path | str, Doc("Folder to write to; for page, the Markdown file")] = Path("runs/studies"),
    target: Annotated[
        str | Path | Sequence[str | Path] | None,
        Doc("Data for transfer and few-shot evaluation; several separated by commas"),
    ] = None,
    jobs: Annotated[int, Doc("Runs in parallel on the device, each in its own process")] = 1,
    steps: Annotated[float, Doc("Factor on the number of steps of every run")] = 1.0,
    compile: Annotated[bool, Doc("Compile every model; pays off for runs of several minutes")] = False,
    graphs: Annotated[
        bool, Doc("On CUDA, capture a training step as a graph and replay it, where the scale allows")
    ] = True,
    rate: Annotated[
        float | None,
        Doc("Matrix-product speed of the device in TFLOP/s, for the estimate [default: measured]"),
    ] = None,
    device: Device = "auto",
    workers: Annotated[int, Doc("Data-loading workers before the first run")] = 2,
) -> "StudyResult":
    """Run the paper's experiments and compare them with its claims; continues where it stopped."""
    data, out = str(data), as_path(out)
    target = None if target is None else ",".join(as_texts(target))
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
