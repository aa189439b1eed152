"""`vitrine report`: everything about a run on one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import options
from vitrine.commands.arguments import as_path

if TYPE_CHECKING:
    from vitrine.runs.run_report import RunReport


def report(
    run: Annotated[Path | str, Doc("Run folder; runs/latest is the newest one")] = Path("runs/latest"),
    *,
    out: Annotated[Path | str | None, Doc("File to write [default: report.html in the run folder]")] = None,
    device: options.Device = "auto",
    workers: options.Readers = 2,
    allow_download: Annotated[
        bool, Doc("Download data that the run names and that is not in the cache")
    ] = False,
) -> "RunReport":
    """Write the report of a run: curves, result, mistakes with attention maps, calibration, data, cost."""
    run, out = as_path(run), as_path(out)
    from vitrine.errors import DataError
    from vitrine.reports.run_account import read_account
    from vitrine.runs.run_data import splits_of_run
    from vitrine.runs.run_report import write_report
    from vitrine.runtime.cache import downloads
    from vitrine.runtime.find_run import find_run
    from vitrine.runtime.processes import joined_processes
    from vitrine.runtime.progress import notice

    folder = find_run(run)
    read_account(folder.path)  # refuses what lacks the records that the page is made of
    if out is None:
        folder.require_own_files()
    splits, notes = None, []
    try:
        with downloads(allowed=allow_download):
            splits = splits_of_run(folder)
    except DataError as error:
        why = "The run's data cannot be opened, so the page has no evaluation of its model"
        notes.append(f"{why}: {error}")
        notice(f"{why}: {error.problem}", advice=error.advice)
    with joined_processes(device) as processes:
        return write_report(
            folder.path, splits=splits, device=processes.device, workers=workers, out=out, notes=notes
        )
