"""`vitrine resume`: continue a run that was stopped, bit for bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import as_place, as_texts

if TYPE_CHECKING:
    from vitrine.runs.records import TrainingResult


@documented
def resume(
    run: Annotated[Path | str, Doc("Run folder or its address; runs/latest is the newest one")] = Path(
        "runs/latest"
    ),
    *,
    device: Annotated[str | None, Doc("auto, cpu, cuda, cuda:N or mps [default: the run's own]")] = None,
    workers: Annotated[
        int | None,
        Doc("Data-loading workers: threads, or processes when training on a GPU [default: the run's own]"),
    ] = None,
    set: Annotated[
        str | Sequence[str] | None,
        Doc("Setting to change from here on, such as training.lr=1e-4; may be repeated"),
    ] = None,
    allow_changed_data: Annotated[bool, Doc("Continue even if files were added, removed or changed")] = False,
    allow_download: Annotated[
        bool, Doc("Download data or a teacher that the run names and that is not in the cache")
    ] = False,
) -> "TrainingResult":
    """Resume a run where it stopped; data order, random numbers, averages and the best result are kept."""
    from vitrine.jobs.resume import resume_run

    return resume_run(
        as_place(run),
        device=device,
        workers=workers,
        settings=as_texts(set),
        allow_changed_data=allow_changed_data,
        allow_download=allow_download,
    )
